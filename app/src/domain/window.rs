//! Maintenance windows: `Sat,Sun 02:00-05:00 Europe/Berlin`, several separated by `;`. Evaluated on the server only.
//!
//! A window is an interval, not a cron line. Its days name its *start*; it is half-open and may cross midnight; its length is
//! elapsed time. A start that falls into the gap of a spring change moves behind it, one that comes twice in autumn is the first
//! of the two: so it opens once on both days, and never for no time at all.

use jiff::{
    SignedDuration, Timestamp, ToSpan,
    civil::{Date, Time, Weekday},
    tz::TimeZone,
};

/// Longest text that is read.
const MAX_TEXT: usize = 300;
/// A week, and a day to each side for zones and midnight.
const SEARCH_DAYS: i64 = 9;

const DAYS: [(&str, Weekday); 7] = [
    ("mon", Weekday::Monday),
    ("tue", Weekday::Tuesday),
    ("wed", Weekday::Wednesday),
    ("thu", Weekday::Thursday),
    ("fri", Weekday::Friday),
    ("sat", Weekday::Saturday),
    ("sun", Weekday::Sunday),
];

/// When the machine may upgrade.
#[derive(Clone, Debug)]
pub struct Window {
    parts: Vec<Part>,
}

#[derive(Clone, Debug)]
struct Part {
    /// From Monday.
    days: [bool; 7],
    start: Time,
    length: SignedDuration,
    zone: TimeZone,
}

impl Window {
    /// Reads a window.
    ///
    /// # Errors
    /// What is wrong with it, in words that name the fix.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_TEXT {
            return Err(format!("is longer than {MAX_TEXT} characters"));
        }
        let parts = text
            .split(';')
            .map(|part| parse_part(part.trim()))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self { parts })
    }

    /// Whether it is open at that moment.
    pub fn is_open(&self, now: Timestamp) -> bool {
        self.parts
            .iter()
            .flat_map(|part| part.occurrences(now))
            .any(|(from, to)| from <= now && now < to)
    }

    /// When it opens next, after that moment.
    pub fn next_opening(&self, now: Timestamp) -> Option<Timestamp> {
        self.next_openings(now, 1).pop()
    }

    /// When it opens next, and how a person says that: `Sat 02:00 Europe/Berlin (in 3 d)`.
    pub fn opening_in_words(&self, now: Timestamp) -> Option<(Timestamp, String)> {
        let (at, zone) = self
            .parts
            .iter()
            .flat_map(|part| {
                part.occurrences(now)
                    .map(|(from, _)| (from, part.zone.clone()))
            })
            .filter(|(from, _)| *from > now)
            .min_by_key(|(from, _)| *from)?;
        let local = at.to_zoned(zone.clone()).strftime("%a %H:%M").to_string();
        let zone = zone.iana_name().unwrap_or("UTC");
        let minutes = (at.as_second() - now.as_second() + 59) / 60;
        let away = match minutes {
            m if m < 90 => format!("{m} min"),
            m if m < 48 * 60 => format!("{} h", (m + 30) / 60),
            m => format!("{} d", (m + 12 * 60) / (24 * 60)),
        };
        Some((at, format!("{local} {zone} (in {away})")))
    }

    /// When it opens next, as often as asked.
    pub fn next_openings(&self, now: Timestamp, count: usize) -> Vec<Timestamp> {
        let mut found: Vec<Timestamp> = vec![];
        let mut from = now;
        while found.len() < count {
            let Some(next) = self
                .parts
                .iter()
                .flat_map(|part| part.occurrences(from))
                .map(|(start, _)| start)
                .filter(|start| *start > from)
                .min()
            else {
                break;
            };
            found.push(next);
            from = next;
        }
        found
    }
}

impl Part {
    /// Every time it opens about that moment: from two days before to more than a week after.
    fn occurrences(&self, now: Timestamp) -> impl Iterator<Item = (Timestamp, Timestamp)> + '_ {
        let today = now.to_zoned(self.zone.clone()).date();
        (-2..=SEARCH_DAYS).filter_map(move |offset| {
            let date = today.checked_add(offset.days()).ok()?;
            self.on(date)
        })
    }

    fn on(&self, date: Date) -> Option<(Timestamp, Timestamp)> {
        let day = usize::try_from(date.weekday().to_monday_zero_offset()).ok()?;
        if !self.days[day] {
            return None;
        }
        let from = self
            .zone
            .to_ambiguous_timestamp(date.to_datetime(self.start))
            .compatible()
            .ok()?;
        Some((from, from.checked_add(self.length).ok()?))
    }
}

const SHAPE: &str = "must look like `Sat,Sun 02:00-05:00 Europe/Berlin`, several separated by `;`";

fn parse_part(text: &str) -> Result<Part, String> {
    let mut words = text.split_whitespace();
    let (Some(days), Some(hours)) = (words.next(), words.next()) else {
        return Err(format!("{SHAPE}; {text:?} does not"));
    };
    let zone = words.next().unwrap_or("UTC");
    if let Some(extra) = words.next() {
        return Err(format!("{SHAPE}; {extra:?} is too much"));
    }
    let days = parse_days(days)?;
    let (start, end) = hours
        .split_once('-')
        .ok_or_else(|| format!("{hours:?} is no span of time: write 02:00-05:00"))?;
    let (from, to) = (minutes(start)?, minutes(end)?);
    if from == 24 * 60 {
        return Err(
            "24:00 can only end a window; one that starts at midnight starts at 00:00".into(),
        );
    }
    if from == to {
        return Err(format!(
            "{hours:?} has no length: for the whole day write 00:00-24:00"
        ));
    }
    let length = if to > from {
        to - from
    } else {
        to + 24 * 60 - from
    };
    let hour = i8::try_from(from / 60).unwrap_or(0);
    let minute = i8::try_from(from % 60).unwrap_or(0);
    Ok(Part {
        days,
        start: Time::constant(hour, minute, 0, 0),
        length: SignedDuration::from_mins(length),
        zone: parse_zone(zone)?,
    })
}

fn parse_days(text: &str) -> Result<[bool; 7], String> {
    if text.eq_ignore_ascii_case("daily") {
        return Ok([true; 7]);
    }
    let mut days = [false; 7];
    for item in text.split(',') {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        let (mut day, last) = (parse_day(first)?, parse_day(last)?);
        days[day] = true;
        while day != last {
            day = (day + 1) % 7;
            days[day] = true;
        }
    }
    Ok(days)
}

fn parse_day(word: &str) -> Result<usize, String> {
    DAYS.iter()
        .position(|(name, _)| name.eq_ignore_ascii_case(word))
        .ok_or_else(|| {
            format!("{word:?} is no day: write Mon, Tue, Wed, Thu, Fri, Sat, Sun or daily")
        })
}

/// Minutes since midnight of `HH:MM`, to 24:00.
fn minutes(text: &str) -> Result<i64, String> {
    let bad = || format!("{text:?} is no time of day: write 00:00 to 24:00, with two digits each");
    let (hour, minute) = text.split_once(':').ok_or_else(bad)?;
    let digits = |t: &str| t.len() == 2 && t.bytes().all(|b| b.is_ascii_digit());
    if !digits(hour) || !digits(minute) {
        return Err(bad());
    }
    let (hour, minute): (i64, i64) = (
        hour.parse().map_err(|_| bad())?,
        minute.parse().map_err(|_| bad())?,
    );
    if minute > 59 || hour * 60 + minute > 24 * 60 {
        return Err(bad());
    }
    Ok(hour * 60 + minute)
}

fn parse_zone(name: &str) -> Result<TimeZone, String> {
    TimeZone::get(name).map_err(|_| {
        format!("{name:?} is no time zone: write an IANA name such as Europe/Berlin, or leave it out for UTC")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    fn window(text: &str) -> Window {
        Window::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn what_cannot_be_read_says_how_to_write_it() {
        for (text, part) in [
            ("", "must look like"),
            ("Sat", "must look like"),
            ("02:00-05:00", "must look like"),
            ("Sat 02:00", "02:00-05:00"),
            ("Sat 2:00-5:00", "two digits"),
            ("Sat 02:00-24:01", "00:00 to 24:00"),
            ("Sat 24:00-02:00", "00:00"),
            ("Sat 02:60-03:00", "00:00 to 24:00"),
            ("Sat 02:00-02:00", "00:00-24:00"),
            ("Caturday 02:00-05:00", "Mon, Tue"),
            ("Sat, Sun 02:00-05:00", "no day"),
            ("Sat 02:00-05:00 Mars/Olympus", "IANA"),
            ("Sat 02:00-05:00 UTC extra", "too much"),
            ("Sat 02:00-05:00;", "must look like"),
            ("* * * * *", "must look like"),
        ] {
            let error = Window::parse(text).expect_err(text);
            assert!(error.contains(part), "{text:?}: {error}");
        }
        assert!(Window::parse(&"x".repeat(301)).is_err());
    }

    #[test]
    fn it_is_half_open_and_the_day_names_its_start() {
        let w = window("Sat 02:00-05:00");
        assert!(!w.is_open(at("2026-12-05T01:59:59Z")));
        assert!(w.is_open(at("2026-12-05T02:00:00Z")));
        assert!(w.is_open(at("2026-12-05T04:59:59Z")));
        assert!(!w.is_open(at("2026-12-05T05:00:00Z")));
        // C11: across midnight it opens, and Sunday's small hours belong to Saturday.
        let w = window("Sat 23:00-02:00");
        assert!(w.is_open(at("2026-12-05T23:30:00Z")) && w.is_open(at("2026-12-06T01:30:00Z")));
        assert!(!w.is_open(at("2026-12-05T01:30:00Z")) && !w.is_open(at("2026-12-06T23:30:00Z")));
        assert_eq!(
            w.next_opening(at("2026-12-05T23:00:00Z")),
            Some(at("2026-12-12T23:00:00Z"))
        );
    }

    #[test]
    fn a_person_reads_when_it_opens() {
        let w = window("Sat 02:00-05:00 Europe/Berlin; Sun 01:00-02:00");
        let words = |now: &str| w.opening_in_words(at(now)).expect("opens").1;
        assert_eq!(
            words("2026-12-02T00:00:00Z"),
            "Sat 02:00 Europe/Berlin (in 3 d)"
        );
        assert_eq!(
            words("2026-12-05T00:59:30Z"),
            "Sat 02:00 Europe/Berlin (in 1 min)"
        );
        assert_eq!(words("2026-12-05T12:00:00Z"), "Sun 01:00 UTC (in 13 h)");
    }

    #[test]
    fn days_lists_ranges_and_zones() {
        let w = window("Mon-Wed,Fri 09:00-10:00 America/New_York; sun 00:00-24:00");
        assert!(w.is_open(at("2026-12-01T14:30:00Z")), "Tuesday, New York");
        assert!(!w.is_open(at("2026-12-03T14:30:00Z")), "not Thursday");
        assert!(w.is_open(at("2026-12-06T23:59:59Z")), "all of Sunday");
        assert!(!w.is_open(at("2026-12-07T00:00:00Z")));
        let over = window("Fri-Mon 10:00-11:00");
        let open: Vec<bool> = (1..=7)
            .map(|d| over.is_open(at(&format!("2026-12-0{d}T10:30:00Z"))))
            .collect();
        assert_eq!(
            open,
            [false, false, false, true, true, true, true],
            "Tue 1st to Mon 7th"
        );
        assert_eq!(
            window("daily 02:00-03:00").next_openings(at("2026-12-01T02:00:00Z"), 3),
            [
                "2026-12-02T02:00:00Z",
                "2026-12-03T02:00:00Z",
                "2026-12-04T02:00:00Z"
            ]
            .map(at)
        );
    }

    /// C12: 02:00–03:00 in Berlin opens once on both days, for one hour of elapsed time.
    #[test]
    fn the_hour_that_is_missing_or_comes_twice() {
        let w = window("daily 02:00-03:00 Europe/Berlin");
        let spring = w.next_openings(at("2027-03-27T12:00:00Z"), 2);
        assert_eq!(
            spring,
            ["2027-03-28T01:00:00Z", "2027-03-29T00:00:00Z"].map(at)
        );
        assert!(w.is_open(at("2027-03-28T01:59:59Z")) && !w.is_open(at("2027-03-28T02:00:00Z")));
        let autumn = w.next_openings(at("2027-10-30T12:00:00Z"), 2);
        assert_eq!(
            autumn,
            ["2027-10-31T00:00:00Z", "2027-11-01T01:00:00Z"].map(at)
        );
        assert!(w.is_open(at("2027-10-31T00:30:00Z")) && !w.is_open(at("2027-10-31T01:30:00Z")));
    }

    /// C13 and design §11: every zone, every change of its offset to 2035: no panic; on the days about a change a daily window opens
    /// once a day, for its whole length; `is_open` and `next_opening` agree.
    #[test]
    fn every_zone_and_every_change_to_2035() {
        let (from, to) = (at("2026-01-01T00:00:00Z"), at("2036-01-01T00:00:00Z"));
        let mut changes = 0;
        for name in jiff::tz::db().available() {
            let Ok(zone) = TimeZone::get(name.as_str()) else {
                continue;
            };
            let texts = [
                "00:00-01:00",
                "01:30-02:30",
                "02:00-03:00",
                "02:30-02:45",
                "23:30-00:30",
            ];
            let windows: Vec<(Window, i64)> = texts
                .iter()
                .map(|hours| {
                    (
                        window(&format!("daily {hours} {name}")),
                        if hours.ends_with(":45") { 15 } else { 60 },
                    )
                })
                .collect();
            for change in zone.following(from).take_while(|t| t.timestamp() < to) {
                changes += 1;
                let noon = change.timestamp() - SignedDuration::from_hours(36);
                for (w, length) in &windows {
                    let opens = w.next_openings(noon, 3);
                    assert_eq!(opens.len(), 3, "{name}");
                    for open in &opens {
                        let end = *open + SignedDuration::from_mins(*length);
                        assert!(
                            w.is_open(*open) && w.is_open(end - SignedDuration::from_secs(1)),
                            "{name} {open}"
                        );
                        assert!(
                            !w.is_open(end) && !w.is_open(*open - SignedDuration::from_secs(1)),
                            "{name} {open}"
                        );
                    }
                    // Once a day: a start in a gap at midnight falls into the next date, never further.
                    let gaps = opens
                        .windows(2)
                        .map(|p| (p[1] - p[0]).total(jiff::Unit::Hour).expect("hours"));
                    assert!(
                        gaps.into_iter().all(|h| (21.0..=27.0).contains(&h)),
                        "{name}: {opens:?}"
                    );
                }
            }
        }
        assert!(changes > 2000, "zones were found: {changes}");
    }

    #[test]
    fn the_ends_of_time_do_not_panic() {
        let w = window("daily 02:00-03:00 Europe/Berlin");
        for t in [Timestamp::MIN, Timestamp::MAX] {
            let _ = (w.is_open(t), w.next_openings(t, 3));
        }
    }
}
