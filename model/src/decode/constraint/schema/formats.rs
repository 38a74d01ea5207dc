//! The formats of JSON Schema as patterns, each with an end: without one, some models write for ever.

/// The pattern of a format. `None` if JSON Schema does not define the format: it then restricts nothing.
///
/// # Errors
/// The format is defined, but cannot be enforced.
pub(super) fn pattern(format: &str) -> Result<Option<String>, String> {
    let date = date();
    let label = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?";
    let host = format!(r"{label}(?:\.{label}){{0,7}}");
    let local = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]{1,32}";
    let pattern = match format {
        "date" => date,
        "time" => TIME.into(),
        "date-time" => format!("{date}[tT]{TIME}"),
        "duration" => duration(),
        "email" | "idn-email" => format!(r"{local}(?:\.{local}){{0,3}}@{host}"),
        "hostname" | "idn-hostname" => host,
        "ipv4" => IPV4.into(),
        "ipv6" => ipv6(),
        "uuid" => "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}".into(),
        "uri" | "iri" => uri(&host),
        "uri-reference" | "iri-reference" => {
            format!(r"(?:{}|/?(?:{SEGMENT}{{1,100}}{})?(?:\?{QUERY})?(?:#{QUERY})?)", uri(&host), segments())
        }
        "json-pointer" => r"(?:/(?:[^~/]|~[01]){0,200}){0,50}".into(),
        "relative-json-pointer" => r"(?:0|[1-9][0-9]{0,8})(?:#|(?:/(?:[^~/]|~[01]){0,200}){0,50})".into(),
        "regex" | "uri-template" => return Err("texts of this format cannot be described by a pattern".into()),
        _ => return Ok(None),
    };
    Ok(Some(format!("^(?:{pattern})$")))
}

/// A time of day with its offset.
const TIME: &str =
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";

const IPV4: &str =
    r"(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";

const QUERY: &str = "(?:[a-zA-Z0-9._~!$&'()*+,;=:@/?-]|%[0-9a-fA-F]{2}){0,500}";

/// A character of a part of a path, other than `:`.
const SEGMENT: &str = "(?:[a-zA-Z0-9._~!$&'()*+,;=@-]|%[0-9a-fA-F]{2})";

/// Days that exist, from year 1 on.
fn date() -> String {
    let year = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)";
    let leap = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)";
    format!(
        "(?:{year}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)\
         |02-(?:0[1-9]|1[0-9]|2[0-8]))|{leap}-02-29)"
    )
}

fn duration() -> String {
    let n = "[0-9]{1,9}";
    let time = format!("T(?:{n}H(?:{n}M(?:{n}S)?)?|{n}M(?:{n}S)?|{n}S)");
    format!("P(?:{n}W|{time}|(?:{n}Y(?:{n}M(?:{n}D)?)?|{n}M(?:{n}D)?|{n}D)(?:{time})?)")
}

/// Eight groups. One run of zero groups may be left out; an IPv4 address may replace the last two.
fn ipv6() -> String {
    let group = "[0-9a-fA-F]{1,4}";
    let last = format!("(?:{group}:{group}|{IPV4})");
    let mut forms = vec![format!("(?:{group}:){{6}}{last}")];
    for before in 0..=7 {
        let head = match before {
            0 => String::new(),
            1 => group.to_owned(),
            n => format!("{group}(?::{group}){{{}}}", n - 1),
        };
        // At most 7 - before groups follow the gap.
        let room = 7 - before;
        if room >= 2 {
            forms.push(format!("{head}::(?:{group}:){{0,{}}}{last}", room - 2));
        }
        if room >= 1 {
            forms.push(format!("{head}::{group}"));
        }
        forms.push(format!("{head}::"));
    }
    format!("(?:{})", forms.join("|"))
}

/// Parts of a path after the first one.
fn segments() -> String {
    format!("(?:/(?:{SEGMENT}|:){{0,100}}){{0,30}}")
}

fn uri(host: &str) -> String {
    let user = "(?:[a-zA-Z0-9._~!$&'()*+,;=:-]|%[0-9a-fA-F]{2}){0,64}@";
    let host = format!(r"(?:{host}|{IPV4}|\[{}\])", ipv6());
    let (first, rest) = (format!("(?:{SEGMENT}|:){{1,100}}"), segments());
    format!(
        r"[a-zA-Z][a-zA-Z0-9+.-]{{0,30}}:(?://(?:{user})?{host}(?::[0-9]{{0,5}})?{rest}|/?{first}{rest})(?:\?{QUERY})?(?:#{QUERY})?"
    )
}
