//! Hostile chat templates: their size, memory, nesting and time are limited.

use std::{fs, path::Path};

use hearth_model::{
    error::Error,
    text::{
        chat::{ChatTemplate, Message, RenderContext},
        tokenizer::Tokenizer,
    },
};

use super::tokenizer_json;

/// Long loops, recursive macros, and expressions that create huge texts or lists.
#[test]
fn endless_or_huge_chat_templates_are_stopped() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("tokenizer.json"), tokenizer_json(&[0, 1])).unwrap();
    let tokenizer = Tokenizer::from_dir(dir.path()).unwrap();
    let templates = [
        "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}",
        "{% for i in range(100000000000) %}{% endfor %}",
        "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set n = 100000000000 %}{{ 'a' * n }}",
        "{% set n = 100000000000 %}{{ [0] * n }}",
        "{{ ('%01000000000000d' % 1) }}",
        "{{ messages | tojson(indent=100000000000) }}",
        "{{ 'a'.ljust(100000000000) }}",
    ];
    for source in templates {
        let template = ChatTemplate::new(source, Path::new("chat_template.jinja"));
        let template = template.unwrap_or_else(|error| unreachable!("{source}: {error}"));
        let message = Message::new("user", "hi");
        let error = template.render(&[message], &RenderContext::new(&tokenizer)).map(|text| text.len()).unwrap_err();
        assert!(matches!(error, Error::Template { .. }), "{source}: {error:?}");
    }
    // The compiler would compute these.
    for source in ["{{ 'a' * 100000000000 }}", "{{ [0] * 100000000000 }}"] {
        let error = ChatTemplate::new(source, Path::new("chat_template.jinja")).unwrap_err();
        let message = error.to_string();
        assert!(
            matches!(error, Error::File { .. }) && message.contains("by too large a number"),
            "{source}: {message}"
        );
    }
}

/// Found by `fuzz/fuzz_targets/chat_template.rs`: the engine's own slices index out of bounds.
#[test]
fn backward_slices_of_empty_lists_are_empty() {
    let template = ChatTemplate::new("{{ [][3::-1] }}{{ ''[3::-1] }}", Path::new("chat_template.jinja")).unwrap();
    let text = template.render(&[Message::new("user", "hi")], &RenderContext::default()).unwrap();
    assert_eq!(text, "[]");
}

#[test]
fn template_output_above_the_size_limit_is_stopped() {
    let word = "x".repeat(10_000);
    let source = format!("{{% for i in range(100000) %}}{word}{{% endfor %}}");
    let template = ChatTemplate::new(&source, Path::new("chat_template.jinja")).unwrap();
    let error = template.render(&[], &RenderContext::default()).unwrap_err().to_string();
    assert!(error.contains("created more than"), "{error}");
}

/// Short templates with huge results: each is rejected before it fills the memory or the stack.
#[test]
fn chat_template_limits_on_size_depth_and_tokens_are_enforced() {
    let much = "created more than";
    let deep = "nests lists and objects more than 64 deep";
    let product = "multiplies a text or a list by too large a number, on line 1";
    let circle = "stores a namespace in a namespace";
    let tokens = "has more than 2000 tokens in one tag, on line 1";
    let long = "must be at most 262144 bytes, got";
    // Sets `x` to `start`, then `n` times to `next`.
    let again = |start: &str, n: usize, next: &str| {
        format!(
            "{{% set ns = namespace(x={start}) %}}{{% for i in range({n}) %}}{{% set ns.x = {next} %}}{{% endfor %}}{{{{ ns.x }}}}"
        )
    };
    // A text of 16 MiB that the template compiler does not evaluate.
    let large = again("'a'", 24, "ns.x + ns.x");
    let with_large = |expression: &str| format!("{large}{{{{ {expression} }}}}").replace("{{ ns.x }}", "");
    for (source, limit) in [
        (again("'a'", 40, "ns.x ~ ns.x"), much),
        (again("'a'", 40, "ns.x + ns.x"), much),
        (again("'a'", 40, "ns.x * 2"), much),
        (again("[1]", 40, "ns.x + ns.x"), much),
        (again("[1]", 40, "ns.x * 2"), much),
        (again("[1]", 40, "[ns.x, ns.x]"), much),
        (again("'a'", 40, "'%s%s'|format(ns.x, ns.x)"), much),
        (again("'a'", 40, "'{}{}'.format(ns.x, ns.x)"), much),
        (again("'a'", 40, "ns.x|replace('a', 'aa')"), much),
        (again("'a'", 40, "ns.x.replace('a', 'aa')"), much),
        (again("'a'", 40, "[ns.x, ns.x]|join"), much),
        (again("'a'", 40, "''.join([ns.x, ns.x])"), much),
        (again("'a'", 40, "[ns.x, ns.x]|string"), much),
        (again("'a'", 40, "[ns.x, ns.x]|tojson"), much),
        (again("'a'", 40, "['a']|map('replace', 'a', ns.x ~ ns.x)|first"), much),
        ("{% set x = 'a' %}".to_owned() + &"{% set x %}{{ x }}{{ x }}{% endset %}".repeat(40), much),
        ("{% set x %}{% for i in range(99999) %}{% for j in range(999) %}xxxxxxxx{% endfor %}{% endfor %}{% endset %}".into(), much),
        (with_large("ns.x|list|length"), much),
        (with_large("ns.x|replace('a', ns.x)"), much),
        (with_large("ns.x.split('a')|length"), much),
        ("{{ range(99999)|list|join(range(99999)|join) }}".into(), much),
        ("{% set n = 9999 %}{{ ([[1, 2, 3]] * n)|sum(start=[])|length }}".into(), much),
        ("{{ 'a'|indent(1000000000, true) }}".into(), much),
        ("{{ '%1000000000d'|format(1) }}".into(), much),
        ("{{ '%*d'|format(1000000000, 1) }}".into(), much),
        ("{{ '{:1000000000}'.format(1) }}".into(), much),
        ("{{ [1]|batch(1000000000, 'x')|list }}".into(), much),
        ("{{ [1]|slice(1000000000)|list }}".into(), much),
        ("{{ ['a']|map('indent', 1000000000, true)|list }}".into(), much),
        ("{{ 'a' * 90000000 }}".into(), product),
        ("{{ (1, 2) * 90000000 }}".into(), product),
        ("{{ 'a' * (9 ** 9) }}".into(), product),
        (again("[]", 100_000, "[ns.x]"), deep),
        (again("{}", 100_000, "{'a': ns.x}"), deep),
        (again("{}", 100_000, "dict(a=ns.x)"), deep),
        ("{% macro f(x) %}{{ f([x]) }}{% endmacro %}{{ f(1) }}".into(), deep),
        (again("1", 1, "ns"), circle),
        (again("1", 1, "{'a': [ns]}"), circle),
        (again("1", 1, "[none]|map('default', ns, true)|list"), circle),
        (format!("{{{{ a{} }}}}", ".b".repeat(20_000)), tokens),
        (format!("{{{{ {} a }}}}", "not ".repeat(20_000)), tokens),
        (format!("{{{{ 1{} }}}}", "+1".repeat(20_000)), tokens),
        (format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(30_000)), long),
        ("{{ 'a'.replace(*['a', 'b']) }}".into(), "gets a list as arguments (`*args`)"),
        ("{% include 'default' %}".into(), "uses the tag `include`, which is not supported"),
        ("{{ debug() }}".into(), "unknown function"),
    ] {
        let template = ChatTemplate::new(&source, Path::new("chat_template.jinja"));
        let rendered = template.and_then(|template| template.render(&[], &RenderContext::default()));
        let error = rendered.map(|text| text.len()).unwrap_err().to_string();
        assert!(error.contains(limit), "{source:.100}: {error}");
    }
    // Deeply nested source below the limit is compiled and dropped without a stack overflow.
    let elif = format!("{{% if 0 %}}{}{{% endif %}}ok", "{% elif 0 %}".repeat(20_000));
    let template = ChatTemplate::new(&elif, Path::new("chat_template.jinja")).unwrap();
    assert_eq!(template.render(&[], &RenderContext::default()).unwrap(), "ok");
    assert!(!template.takes_tools());
}

/// Found by `fuzz/fuzz_targets/chat_template.rs`: the opening of a tag and its end share a character.
#[test]
fn malformed_template_tags_do_not_panic() {
    for source in ["{%}", "a{%}b %}", "{%", "%}", "{%}{% generation %}x{% endgeneration %}"] {
        drop(ChatTemplate::new(source, Path::new("chat_template.jinja")));
    }
}
