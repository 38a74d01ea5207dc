//! Architectures that people ask for and Hearth does not compute, and why.

/// By how the class's name begins.
const REASONS: &[(&str, &str)] = &[
    ("Gemma3n", "its blocks have several residual streams; Gemma 3 and Gemma 4 are supported"),
    ("Gemma4Assistant", "it drafts for another model, whose states it reads"),
    ("Phimoe", "its router compares experts one after the other"),
    ("PhiMoE", "its router compares experts one after the other"),
    ("FalconH1", "its blocks have attention and Mamba-2 side by side"),
    ("Mamba", "it has no attention"),
    ("FalconMamba", "it has no attention"),
    ("Jamba", "its recurrent layers are the first version of Mamba"),
    ("Llama4", "it attends in chunks"),
    ("KimiLinear", "its recurrent layers have a decay for each channel"),
    ("MiniMaxForCausalLM", "its recurrent layers have a decay that does not depend on the text"),
    ("MiniMaxText01", "its recurrent layers have a decay that does not depend on the text"),
    ("BitNet", "it has norms within attention and MLP, and rounds activations"),
    ("Qwen4Exp", "its blocks have several residual streams"),
];

/// Why the class `class` is not supported, if that is known.
pub(in super::super) fn reason(class: &str) -> Option<&'static str> {
    REASONS.iter().find(|(start, _)| class.starts_with(start)).map(|(_, reason)| *reason)
}
