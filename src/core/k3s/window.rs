//! Maintenance window: the time of the day in which restarts that can wait happen.

use std::fmt;

const DAY_MIN: u16 = 1440;

/// A time of each day, of this machine; it may go over midnight.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Window {
    /// Its beginning, in minutes of the day.
    from_min: u16,
    /// Its end, in minutes of the day.
    to_min: u16,
}

impl Window {
    /// Reads `02:00-05:00`.
    pub fn parse(text: &str) -> Option<Self> {
        let (from, to) = text.split_once('-')?;
        let window = Self {
            from_min: minutes(from)?,
            to_min: minutes(to)?,
        };
        (window.from_min != window.to_min).then_some(window)
    }

    /// Minutes until it opens, at this minute of the day; `None`: it is open.
    pub fn opens_in(self, now_min: u16) -> Option<u16> {
        let after = |from: u16, to: u16| (to + DAY_MIN - from) % DAY_MIN;
        let is_open = after(self.from_min, now_min) < after(self.from_min, self.to_min);
        (!is_open).then(|| after(now_min, self.from_min))
    }
}

/// Minutes of the day of `HH:MM`.
pub fn minutes(text: &str) -> Option<u16> {
    let (hours, minutes) = text.trim().split_once(':')?;
    let number = |text: &str, end: u16| {
        let is_fine = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse::<u16>().ok().filter(|_| is_fine)?;
        (number < end).then_some(number)
    };
    Some(number(hours, 24)? * 60 + number(minutes, 60)?)
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from_min, to_min } = self;
        write!(
            f,
            "{:02}:{:02}-{:02}:{:02}",
            from_min / 60,
            from_min % 60,
            to_min / 60,
            to_min % 60
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_says_how_long_it_stays_closed_also_over_midnight() {
        for (window, now, opens_in) in [
            ("02:00-05:00", "01:59", Some(1)),
            ("02:00-05:00", "02:00", None),
            ("02:00-05:00", "04:59", None),
            ("02:00-05:00", "05:00", Some(21 * 60)),
            ("22:30-01:00", "23:59", None),
            ("22:30-01:00", "00:59", None),
            ("22:30-01:00", "01:00", Some(21 * 60 + 30)),
        ] {
            let found = Window::parse(window).unwrap();
            assert_eq!(found.to_string(), window);
            assert_eq!(
                found.opens_in(minutes(now).unwrap()),
                opens_in,
                "{window} {now}"
            );
        }
        for wrong in [
            "",
            "02:00",
            "2:00-5:00",
            "02:00-24:00",
            "02:00-02:00",
            "a-b",
        ] {
            assert_eq!(Window::parse(wrong), None, "{wrong}");
        }
    }
}
