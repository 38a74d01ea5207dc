//! Bytes as a chat template, rendered for a short conversation.
#![no_main]

use std::path::Path;

use hearth_fuzz::text::chat::{ChatTemplate, Message, RenderContext};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: {
    // The fuzzer's hook ends the program at any panic. Those of the template engine are caught and are errors; what
    // nobody catches is still a finding.
    std::panic::set_hook(Box::new(|_| {}));
}, |source: &str| {
    let Ok(template) = ChatTemplate::new(source, Path::new("chat_template.jinja")) else { return };
    let messages =
        [Message::new("system", "be brief"), Message::new("user", "hi"), Message::new("assistant", "<|im_end|>")];
    drop(template.render(&messages, &RenderContext::default()));
});
