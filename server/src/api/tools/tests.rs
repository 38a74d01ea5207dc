#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use super::{
    call_format::{ANY, GRANITE, MISTRAL},
    *,
};

fn style(source: &str) -> ToolStyle {
    ToolStyle::of(&ChatTemplate::new(source, Path::new("chat_template.jinja")).unwrap())
}

#[test]
fn tool_style_uses_the_template_format_only_if_it_takes_tools() {
    assert_eq!(style("{{ tools }}{{ '[TOOL_CALLS][' }}").format, &MISTRAL);
    assert_eq!(style("{{ tools }}{{ '<|tool_call|>' }}").format, &GRANITE);
    assert_eq!(style("{{ tools }}{{ '<tools>' }}").format, &ANY);
    assert_eq!(style("{{ '[TOOL_CALLS][' }}").format, &HERMES);
}
