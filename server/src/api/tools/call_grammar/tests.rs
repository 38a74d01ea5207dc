use hearth_model::decode::constraint::in_lark;

use super::{
    super::call_format::{GRANITE, HERMES, LLAMA, MISTRAL, MISTRAL_NAMED},
    *,
};

/// The rules for calls of two functions, or of the last one.
fn rules(format: &CallFormat, marks: &[(&'static str, TokenId)], n_calls: Calls) -> String {
    let schema = json!({ "type": "object" });
    let function = |name: &str| Function { name: name.into(), parameters: schema.clone() };
    let functions = [function("f"), function("g")];
    let functions = if n_calls == Calls::One { &functions[1..] } else { &functions[..] };
    call_rules(format, functions, n_calls, marks.to_vec()).lark.replace(&in_lark(&schema), "JSON")
}

#[test]
fn tool_grammar_writes_special_token_marks_by_id() {
    let call = r#"call: call_0
arguments_0: JSON
call_0: ("g\", \"arguments\": ") arguments_0 "}""#;
    let marks = [("[TOOL_CALLS]", 5), ("[ARGS]", 7), ("<|tool_call|>", 8)];
    let start = |rules: String| rules.lines().next().unwrap_or_default().to_owned();
    let rest = |rules: String| rules.lines().skip(2).collect::<Vec<_>>().join("\n");
    for (format, marks, first) in [
        (&MISTRAL, &marks[..], r#"calls: <[5]> "[{\"name\": \"" call  "]""#),
        (&MISTRAL, &[], r#"calls: "[TOOL_CALLS][{\"name\": \"" call  "]""#),
        (&GRANITE, &marks, r#"calls: <[8]> "[{\"name\": \"" call  "]""#),
    ] {
        assert_eq!(start(rules(format, marks, Calls::One)), first);
        assert_eq!(rest(rules(format, marks, Calls::One)), call);
    }
    let named =
        "calls: <[5]> call  \nafter_mark:  call  \ncall: call_0\narguments_0: JSON\ncall_0: (\"g\" <[7]>) arguments_0 ";
    assert_eq!(rules(&MISTRAL_NAMED, &marks, Calls::One), named);
}

#[test]
fn tool_grammar_allows_up_to_16_parallel_calls() {
    for (format, more) in [
        (&HERMES, r#" call ("\n<tool_call>\n{\"name\": \"" call){0,15} "#),
        (&LLAMA, r#" call ("; {\"name\": \"" call){0,15} "#),
        (&MISTRAL, r#" call (", {\"name\": \"" call){0,15} "]""#),
        (&MISTRAL_NAMED, r#" call ("[TOOL_CALLS]" call){0,15} "#),
    ] {
        let rules = rules(format, &[], Calls::Several);
        let first = rules.lines().next().unwrap_or_default();
        assert!(first.ends_with(more) && rules.contains("call: call_0 | call_1\n"), "{rules}");
    }
}

#[test]
fn rules_after_a_mark_have_several_calls_only_if_one_pair_of_marks_is_around_all() {
    let after_mark = |format| {
        let rules = rules(format, &[], Calls::Several);
        rules.lines().find(|line| line.starts_with("after_mark")).unwrap_or_default().to_owned()
    };
    assert_eq!(after_mark(&HERMES), r#"after_mark: /[ \n]/? "{\"name\": \"" call  "#);
    let list = r#"after_mark: /[ \n]/? "[{\"name\": \"" call (", {\"name\": \"" call){0,15} "]""#;
    assert_eq!(after_mark(&MISTRAL), list);
    // An optional mark.
    assert_eq!(after_mark(&LLAMA), r#"after_mark: /[ \n]/? "{\"name\": \"" call  "#);
}
