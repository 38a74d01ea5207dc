//! `<seed:tool_call><function=name><parameter=x>value</parameter></function></seed:tool_call>`: Seed-OSS.

use super::{Body, CallFormat, ONE_BY_ONE};
use crate::api::tools::call_arguments::{Arguments, Tags};

pub(crate) static SEED_OSS: CallFormat = CallFormat {
    signs: &[&["<seed:tool_call>"]],
    openings: &["<seed:tool_call>"],
    closing: Some("</seed:tool_call>"),
    body: Body::Framed(Arguments::Tags(Tags {
        before_name: "<parameter=",
        after_name: ">",
        before_value: "",
        after_value: "</parameter>",
        separator: "\n",
        wrapper: None,
    })),
    around_parts: ["<seed:tool_call>\n<function=", ">\n", "</function>\n</seed:tool_call>"],
    ..ONE_BY_ONE
};
