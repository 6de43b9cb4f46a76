use log::Log as _;

use super::*;

fn clock() -> Wall {
    Wall::from_millis(1_781_589_028_123)
}

#[derive(Clone, Default)]
struct Written(Arc<Lock<Reader>>);

#[derive(Default)]
struct Reader {
    text: String,
    fails_with: Option<io::ErrorKind>,
}

impl Sink for Written {
    fn write_line(&mut self, line: &[u8], _patience_ms: u16) -> io::Result<()> {
        let mut reader = lock_unpoisoned(&self.0);
        if let Some(kind) = reader.fails_with {
            return Err(kind.into());
        }
        reader.text.push_str(&String::from_utf8_lossy(line));
        Ok(())
    }
}

impl Written {
    fn take(&self) -> String {
        std::mem::take(&mut lock_unpoisoned(&self.0).text)
    }

    fn fail(&self, kind: Option<io::ErrorKind>) {
        lock_unpoisoned(&self.0).fails_with = kind;
    }
}

fn logger(format: Format, level: LevelFilter) -> (Logger, Written) {
    let written = Written::default();
    let form = Form { format, level };
    let logger = Logger::new(form, clock, Box::new(written.clone()), Recent::default());
    (logger, written)
}

fn say(logger: &Logger, level: Level, target: &str, message: &str) {
    let arguments = format_args!("{message}");
    logger.log(
        &Record::builder()
            .level(level)
            .target(target)
            .args(arguments)
            .build(),
    );
}

const OURS: &str = "pipeops_agent::daemon";

#[test]
fn each_format_is_written_as_its_reader_wants_it() {
    for (format, wanted) in [
        (Format::Plain, "2026-06-16T05:50:28.123Z warn  link: lost\n"),
        (Format::Journal, "<4>link: lost\n"),
        (
            Format::Json,
            "{\"level\":\"warn\",\"message\":\"link: lost\",\"target\":\"pipeops_agent::daemon\",\"time\":\"2026-06-16T05:50:28.123Z\"}\n",
        ),
    ] {
        let (logger, written) = logger(format, LevelFilter::Info);
        say(&logger, Level::Warn, OURS, "link: lost");
        assert_eq!(written.take(), wanted);
    }
}

#[test]
fn a_message_cannot_forge_a_line_or_command_the_terminal() {
    let (logger, written) = logger(Format::Journal, LevelFilter::Info);
    say(
        &logger,
        Level::Info,
        OURS,
        "a\n<0>forged\r\u{1b}[2J\u{202e}\u{200f}\u{61c}b",
    );
    assert_eq!(
        written.take(),
        "<6>a\\n<0>forged\\r\\u{1b}[2J\\u{202e}\\u{200f}\\u{61c}b\n"
    );
}

#[test]
fn a_long_message_is_cut_to_what_a_pipe_takes_at_once() {
    for text in [
        "x".repeat(100_000),
        "é".repeat(100_000),
        "\n".repeat(100_000) + "x",
    ] {
        let (logger, written) = logger(Format::Plain, LevelFilter::Info);
        say(&logger, Level::Info, OURS, &text);
        let line = written.take();
        assert!(line.len() <= LINE_BYTES_MAX, "{}", line.len());
        assert!(line.ends_with("…\n"));
    }
}

#[test]
fn dependencies_are_heard_from_warnings_on_and_we_from_the_level_set() {
    let (logger, written) = logger(Format::Journal, LevelFilter::Trace);
    say(&logger, Level::Debug, "rustls::client", "secret header");
    say(&logger, Level::Warn, "rustls::client", "odd");
    say(&logger, Level::Trace, OURS, "frame");
    assert_eq!(written.take(), "<4>odd\n<7>frame\n");
}

#[test]
fn lines_lost_to_a_stalled_reader_are_counted_and_still_remembered() {
    let (logger, written) = logger(Format::Journal, LevelFilter::Info);
    written.fail(Some(io::ErrorKind::WouldBlock));
    say(&logger, Level::Info, OURS, "one");
    say(&logger, Level::Info, OURS, "two");
    written.fail(None);
    say(&logger, Level::Info, OURS, "three");
    assert_eq!(
        written.take(),
        "<4>the log could not be written for a time: lines=2\n<6>three\n"
    );
    let messages: Vec<_> = logger
        .recent
        .lines_after(0)
        .0
        .into_iter()
        .map(|line| line.message)
        .collect();
    assert_eq!(messages, ["one", "two", "three"]);
}

#[test]
fn a_reader_that_went_away_is_no_loss() {
    let (logger, written) = logger(Format::Journal, LevelFilter::Info);
    written.fail(Some(io::ErrorKind::BrokenPipe));
    say(&logger, Level::Info, OURS, "one");
    written.fail(None);
    say(&logger, Level::Info, OURS, "two");
    assert_eq!(written.take(), "<6>two\n");
}

#[test]
fn the_memory_has_a_bound_in_lines_and_in_bytes() {
    let (logger, _written) = logger(Format::Journal, LevelFilter::Info);
    for number in 0..1000 {
        say(&logger, Level::Info, OURS, &format!("line {number}"));
    }
    let lines = logger.recent.lines_after(0).0;
    assert_eq!(lines.len(), LINES_MAX);
    assert_eq!(lines.last().unwrap().message, "line 999");
    for _ in 0..200 {
        say(&logger, Level::Info, OURS, &"x".repeat(3000));
    }
    let bytes: usize = logger
        .recent
        .lines_after(0)
        .0
        .iter()
        .map(|line| line.message.len())
        .sum();
    assert!(bytes <= BYTES_MAX);
}

#[test]
fn only_the_stream_that_systemd_named_is_the_journal() {
    assert!(!is_journal(None));
    assert!(!is_journal(Some("1:2")));
    let facts = nix::sys::stat::fstat(io::stderr()).unwrap();
    assert!(is_journal(Some(&format!(
        "{}:{}",
        facts.st_dev, facts.st_ino
    ))));
}

#[test]
fn a_logger_takes_the_form_of_the_settings_once_they_are_read() {
    let (logger, written) = logger(Format::Plain, LevelFilter::Info);
    say(&logger, Level::Debug, "pipeops_agent::link", "not heard");
    logger.take_form(Form {
        format: Format::Journal,
        level: LevelFilter::Debug,
    });
    say(&logger, Level::Debug, "pipeops_agent::link", "heard");
    assert_eq!(written.take(), "<7>heard\n");
}
