//! [W3C Trace Context](https://www.w3.org/TR/trace-context/): the trace that a request belongs to, from its headers
//! `traceparent` and `tracestate`. Malformed headers are ignored.

use std::fmt;

use axum::http::HeaderMap;

use crate::random::random_u64;

/// Maximum length of a forwarded `tracestate`; the minimum that the specification requires.
const MAX_STATE_BYTES: usize = 512;

/// The id of a trace; never all zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId([u8; 16]);

/// The id of a span; never all zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanId([u8; 8]);

/// A span's trace and parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace: the caller's, or a new one.
    pub trace_id: TraceId,
    /// The request's own span.
    pub span_id: SpanId,
    /// The caller's span.
    pub parent_id: Option<SpanId>,
    /// The caller's `tracestate`, unchanged.
    pub state: String,
    /// Whether the trace is recorded, as the caller decided; new traces are.
    pub is_sampled: bool,
}

impl TraceId {
    /// The position of the id among all ids, from 0 to below 1, from its last 8 bytes, which are random in every id.
    pub(crate) fn fraction(self) -> f64 {
        let [_, _, _, _, _, _, _, _, last @ ..] = self.0;
        // An `f64` has 53 bits of precision.
        (u64::from_be_bytes(last) >> 11) as f64 / (1u64 << 53) as f64
    }
}

impl TraceContext {
    /// A new trace.
    pub fn root() -> Self {
        let [high, low] = [random_u64(), random_u64()].map(u64::to_be_bytes);
        let mut trace_id = [0; 16];
        trace_id[..8].copy_from_slice(&high);
        trace_id[8..].copy_from_slice(&low);
        // Zero is not a valid id.
        trace_id[15] |= u8::from(trace_id == [0; 16]);
        Self {
            trace_id: TraceId(trace_id),
            span_id: SpanId::fresh(),
            parent_id: None,
            state: String::new(),
            is_sampled: true,
        }
    }

    /// A new span below the caller's, if the headers are valid.
    pub fn below_caller(headers: &HeaderMap) -> Option<Self> {
        let mut given = headers.get_all("traceparent").iter();
        let parent = given.next()?.as_bytes();
        if given.next().is_some() {
            return None;
        }
        let (trace_id, parent_id, flags) = parse(parent)?;
        let states: Vec<_> = headers.get_all("tracestate").iter().map(|state| state.to_str()).collect();
        let state = states.into_iter().collect::<Result<Vec<_>, _>>().unwrap_or_default().join(",");
        Some(Self {
            trace_id,
            span_id: SpanId::fresh(),
            parent_id: Some(parent_id),
            state: if state.len() <= MAX_STATE_BYTES { state } else { String::new() },
            is_sampled: flags & 1 == 1,
        })
    }
}

/// Parses `00-TRACE-PARENT-FLAGS`. Later versions may append fields after another dash.
fn parse(header: &[u8]) -> Option<(TraceId, SpanId, u8)> {
    const LEN: usize = 55;
    let (fields, rest) = header.split_at_checked(LEN)?;
    let [version] = hex(fields.get(..2)?)?;
    let is_whole = match version {
        0 => rest.is_empty(),
        0xff => false,
        _ => rest.is_empty() || rest.starts_with(b"-"),
    };
    let has_dashes = [2, 35, 52].iter().all(|&place| fields.get(place) == Some(&b'-'));
    let (trace_id, parent_id, [flags]) = (hex(fields.get(3..35)?)?, hex(fields.get(36..52)?)?, hex(fields.get(53..)?)?);
    let are_nonzero = trace_id != [0; 16] && parent_id != [0; 8];
    (is_whole && has_dashes && are_nonzero).then_some((TraceId(trace_id), SpanId(parent_id), flags))
}

/// Lowercase hexadecimal digits, two for each byte.
fn hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let bytes: Vec<u8> =
        digits.chunks_exact(2).map(|pair| Some((digit(pair[0])? << 4) | digit(pair[1])?)).collect::<Option<_>>()?;
    bytes.try_into().ok()
}

impl SpanId {
    fn fresh() -> Self {
        Self(random_u64().max(1).to_be_bytes())
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use axum::http::HeaderValue;

    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn context(parents: &[&str], states: &[&str]) -> Option<TraceContext> {
        let mut headers = HeaderMap::new();
        for (name, values) in [("traceparent", parents), ("tracestate", states)] {
            for value in values {
                headers.append(name, HeaderValue::from_str(value).unwrap());
            }
        }
        TraceContext::below_caller(&headers)
    }

    #[test]
    fn valid_traceparent_and_tracestate_are_continued() {
        let taken = context(&[PARENT], &["rojo=00f067aa0ba902b7", "congo=t61rcWkgMzE"]).unwrap();
        assert_eq!(taken.trace_id.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(taken.parent_id.unwrap().to_string(), "00f067aa0ba902b7");
        assert_eq!(taken.state, "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE");
        assert!(taken.is_sampled && Some(taken.span_id) != taken.parent_id);
        assert!(!context(&[&PARENT.replace("-01", "-00")], &[]).unwrap().is_sampled);
        assert!(context(&[&PARENT.replace("-01", "-ff")], &[]).unwrap().is_sampled);
        assert_eq!(context(&[PARENT], &["x=".repeat(400).as_str()]).unwrap().state, "");
        // Later versions of `traceparent` are accepted, also with more fields.
        assert!(context(&[&PARENT.replace("00-4b", "cc-4b")], &[]).is_some());
        assert!(context(&[&format!("{}-what-comes", PARENT.replace("00-4b", "cc-4b"))], &[]).is_some());
    }

    #[test]
    fn malformed_traceparent_headers_are_ignored() {
        let malformed = [
            String::new(),
            PARENT[..54].to_owned(),
            format!("{PARENT}0"),
            format!("{PARENT}-more"),
            PARENT.to_uppercase(),
            PARENT.replace("00-4b", "ff-4b"),
            PARENT.replace("00-4b", "0g-4b"),
            format!("{}.more", PARENT.replace("00-4b", "cc-4b")),
            PARENT.replace('-', "_"),
            PARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            PARENT.replace("00f067aa0ba902b7", &"0".repeat(16)),
            PARENT.replace("-01", "-.0"),
            PARENT.replace("4bf9", "4bé"),
        ];
        for parent in &malformed {
            assert_eq!(context(&[parent], &[]), None, "{parent}");
        }
        assert_eq!(context(&[PARENT, PARENT], &[]), None, "two");
        assert_eq!(context(&[], &["rojo=1"]), None, "a state without a parent");
    }

    #[test]
    fn root_traces_have_distinct_ids_no_parent_and_are_sampled() {
        let [one, other] = [TraceContext::root(), TraceContext::root()];
        assert_ne!(one.trace_id, other.trace_id);
        assert_eq!((one.trace_id.to_string().len(), one.span_id.to_string().len()), (32, 16));
        assert!(one.parent_id.is_none() && one.is_sampled);
    }
}
