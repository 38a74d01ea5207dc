//! The list of models in the shape of Anthropic's API.

use serde::Serialize;

/// A page of the list. There is only one.
#[derive(Debug, Serialize)]
pub(crate) struct ModelPage {
    data: Vec<ModelInfo>,
    has_more: bool,
    first_id: Option<String>,
    last_id: Option<String>,
}

/// One model.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ModelInfo {
    #[serde(rename = "type")]
    kind: &'static str,
    id: String,
    display_name: String,
    created_at: String,
    lifecycle: &'static str,
    max_input_tokens: usize,
    max_tokens: usize,
}

impl ModelPage {
    pub(crate) fn new(data: Vec<ModelInfo>) -> Self {
        let [first_id, last_id] = [data.first(), data.last()].map(|model| model.map(|model| model.id.clone()));
        Self { data, has_more: false, first_id, last_id }
    }
}

impl ModelInfo {
    /// A model that exists since `created`, in seconds since 1970, with a context of `max_seq_len` tokens.
    pub(crate) fn new(id: &str, created: u64, max_seq_len: usize) -> Self {
        Self {
            kind: "model",
            id: id.to_owned(),
            display_name: id.to_owned(),
            created_at: date_time(created),
            lifecycle: "active",
            max_input_tokens: max_seq_len,
            max_tokens: max_seq_len,
        }
    }
}

/// A time in seconds since 1970 as in RFC 3339, in UTC. The date is computed as by Howard Hinnant's `civil_from_days`:
/// years begin in March, so that the leap day is the last.
fn date_time(seconds: u64) -> String {
    const DAYS_PER_ERA: u64 = 146_097;
    let (days, rest) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day_of_era) = (days / DAYS_PER_ERA, days % DAYS_PER_ERA);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_in_rfc_3339() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_709_251_200, "2024-03-01T00:00:00Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
        ] {
            assert_eq!(date_time(seconds), text);
        }
    }
}
