//! Median, tail and spread of measurements.

/// Measurements of one thing, in one unit.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples {
    sorted: Vec<f64>,
}

impl Samples {
    /// Takes the measurements in any order.
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self { sorted: values }
    }

    pub(crate) fn len(&self) -> usize {
        self.sorted.len()
    }

    /// The smallest value that so many thousandths of all are not above (nearest rank).
    pub(crate) fn permille(&self, permille: usize) -> f64 {
        let rank = self.sorted.len().saturating_mul(permille).div_ceil(1000);
        let place = rank.saturating_sub(1);
        self.sorted.get(place).copied().unwrap_or(f64::NAN)
    }

    pub(crate) fn median(&self) -> f64 {
        self.permille(500)
    }

    pub(crate) fn largest(&self) -> f64 {
        self.sorted.last().copied().unwrap_or(f64::NAN)
    }

    pub(crate) fn smallest(&self) -> f64 {
        self.sorted.first().copied().unwrap_or(f64::NAN)
    }

    /// "3.1 to 4.2 of 7", for the note beside a median.
    pub(crate) fn spread(&self) -> String {
        format!(
            "{} to {} in {}",
            crate::table::number(self.smallest()),
            crate::table::number(self.largest()),
            self.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: &[f64]) -> Samples {
        Samples::of(values.to_vec())
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let hundred = Samples::of(hundred);
        for (permille, expected) in [(500, 50.0), (990, 99.0), (1000, 100.0), (10, 1.0), (0, 1.0)] {
            assert!(
                (hundred.permille(permille) - expected).abs() < 1e-9,
                "{permille}"
            );
        }
        assert!((samples(&[3.0, 1.0, 2.0]).median() - 2.0).abs() < 1e-9);
    }

    #[test]
    fn nothing_measured_is_no_number() {
        assert!(samples(&[]).median().is_nan());
        assert_eq!(samples(&[]).len(), 0);
    }

    #[test]
    fn the_spread_names_both_ends_and_the_count() {
        assert_eq!(samples(&[2.5, 1.0, 4.0]).spread(), "1.00 to 4.00 in 3");
    }
}
