//! Grammars of structured output: slow ones, and the limits on what is compiled.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    collections::BTreeSet,
    path::Path,
    time::{Duration, Instant},
};

use hearth_model::{
    TokenId,
    decode::constraint::{Constraint, Grammar, GrammarCompiler},
    text::tokenizer::Tokenizer,
};
use serde_json::{Map, Value, json};

/// Letters from a to h, ambiguously: after 100 letters a token takes some 20 ms.
const SLOW: &str = "start: s\ns: s s | s s s | /[a-h]/";
/// The same texts, unambiguously.
const QUICK: &str = "start: s\ns: s t | t\nt: /[a-h]/";

/// The end of a text; the ids below are those of the printable ASCII characters.
const EOS: TokenId = 95;
const VOCAB_SIZE: usize = 96;

/// Longer than anything here takes on a slow machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

fn compiler() -> GrammarCompiler {
    let vocab: Map<String, Value> = (' '..='~').zip(0..).map(|(token, id)| (token.into(), id.into())).collect();
    let split = json!({ "type": "Split", "pattern": { "Regex": "." }, "behavior": "Isolated", "invert": false });
    let end = json!({
        "id": EOS, "content": "<|end|>", "special": true,
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
    });
    let json = json!({
        "added_tokens": [end], "pre_tokenizer": split, "decoder": { "type": "Fuse" },
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "" },
    });
    let tokenizer = Tokenizer::from_json(json.to_string().as_bytes(), None, Path::new("tokenizer.json")).unwrap();
    assert_eq!(tokenizer.vocab_size(), VOCAB_SIZE);
    GrammarCompiler::new(&tokenizer).unwrap()
}

fn constraint(lark: &str) -> Constraint {
    compiler().compile(&Grammar::Lark(lark.to_owned()), "grammar").unwrap()
}

fn id(byte: u8) -> TokenId {
    TokenId::from(byte - b' ')
}

fn settled(constraint: &mut Constraint) -> hearth_model::Result<bool> {
    loop {
        match constraint.accepted() {
            Some(accepted) => return accepted,
            None => std::thread::sleep(Duration::from_micros(100)),
        }
    }
}

#[test]
fn accept_elsewhere_gives_the_masks_and_errors_of_accept() {
    let (logits, ends) = (vec![0.0; VOCAB_SIZE], BTreeSet::from([EOS]));
    let mut here = constraint("start: s \".\"\ns: s s | /[a-d]/ | \"(\" s \")\"");
    let mut elsewhere = here.clone();
    let text = b"ab(c(d)a)b.";
    for (at, &byte) in text.iter().enumerate() {
        assert_eq!(here.restrict(&logits, &ends).unwrap(), elsewhere.restrict(&logits, &ends).unwrap(), "{at}");
        elsewhere.accept_elsewhere(id(byte));
        let is_complete = here.accept(id(byte)).unwrap();
        assert_eq!(settled(&mut elsewhere).unwrap(), is_complete, "{at}");
        assert_eq!(is_complete, at + 1 == text.len());
        assert!(elsewhere.accepted().is_none(), "it is told once");
    }
    // A rejected token gives the same error.
    let (mut here, mut elsewhere) = (constraint(QUICK), constraint(QUICK));
    elsewhere.accept_elsewhere(id(b'!'));
    assert_eq!(settled(&mut elsewhere).unwrap_err().to_string(), here.accept(id(b'!')).unwrap_err().to_string());
}

#[test]
fn constraint_is_slow_follows_the_measured_time_per_token() {
    let (logits, ends) = (vec![0.0; VOCAB_SIZE], BTreeSet::new());
    let accept_a = |constraint: &mut Constraint| {
        constraint.accept(id(b'a')).unwrap();
        constraint.restrict(&logits, &ends).unwrap();
    };
    let mut slow = constraint(SLOW);
    let clone = slow.clone();
    slow.restrict(&logits, &ends).unwrap();
    for _ in 0..230 {
        accept_a(&mut slow);
    }
    assert!(slow.is_slow());
    assert!(clone.is_slow(), "clones share what takes the time");

    // Token times are wall-clock times: a quick grammar may look slow after the thread was descheduled, and recovers.
    let mut quick = constraint(QUICK);
    quick.restrict(&logits, &ends).unwrap();
    let mut tokens_on_time = 0;
    let end = Instant::now() + TEST_TIMEOUT;
    while tokens_on_time < 230 {
        accept_a(&mut quick);
        tokens_on_time += 1;
        if quick.is_slow() {
            tokens_on_time = 0;
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(Instant::now() < end, "quick tokens are taken for slow ones");
    }
}

/// Compiling recurses along chains of rules, in its own thread, whose stack must hold the longest accepted chain.
#[test]
fn longest_allowed_grammar_rule_chains_do_not_overflow_the_stack() {
    let compiler = compiler();
    let compile = |grammar: Grammar| compiler.compile(&grammar, "grammar").map(drop).map_err(|error| error.to_string());
    let chain = |n: usize, each: &dyn Fn(usize) -> String| (0..n).map(|i| each(i) + "\n").collect::<String>();
    let rule = |i: usize| format!("r{i}: \"x\" r{}", i + 1);
    let unit = |i: usize| format!("r{i}: r{}", i + 1);
    let circle = |i: usize| format!("r{i}: \"x\" r{}?", (i + 1) % 3_999);
    let terminal = |i: usize| format!("T{i}: \"x\" T{}", i + 1);
    // The first and the last rule count, too.
    for n in [3_998, 3_999] {
        for source in [
            format!("start: r0\n{}r{n}: \"z\"", chain(n, &rule)),
            format!("start: r0\n{}r{n}: \"z\"", chain(n, &unit)),
            format!("start: r0\n{}", chain(n + 1, &circle)),
            format!("start: T0\n{}T{n}: \"z\"", chain(n, &terminal)),
        ] {
            let refused = compile(Grammar::Lark(source)).is_err_and(|error| error.contains("4000 rules"));
            assert_eq!(refused, n == 3_999);
        }
    }
    // As long as the limit on values admits.
    type Link = fn(Value) -> Value;
    let links: [(usize, Link); 9] = [
        (2, |next| next),
        (4, |next| json!({ "allOf": [next] })),
        (4, |next| json!({ "anyOf": [next] })),
        (4, |next| json!({ "oneOf": [next] })),
        (3, |next| json!({ "items": next })),
        (4, |next| json!({ "prefixItems": [next] })),
        (3, |next| json!({ "additionalProperties": next })),
        (4, |next| json!({ "properties": { "a": next } })),
        (4, |next| json!({ "patternProperties": { "a": next } })),
    ];
    for (values, link) in links {
        let n = 19_900 / values;
        let named = |i: usize| (format!("d{i}"), link(json!({ "$ref": format!("#/$defs/d{}", i + 1) })));
        let mut names: Map<String, Value> = (0..n).map(named).collect();
        names.insert(format!("d{n}"), json!({ "type": "integer" }));
        let compiled = compile(Grammar::Json(json!({ "$ref": "#/$defs/d0", "$defs": names })));
        assert!(!compiled.is_err_and(|error| error.contains("values")), "{values}");
    }
}

/// Compile time grows faster than the number of optional parts.
#[test]
fn regex_with_more_than_5000_optional_parts_is_rejected() {
    let compiler = compiler();
    let refusal =
        |grammar: Grammar| compiler.compile(&grammar, "grammar").map(drop).err().map(|error| error.to_string());
    let many = |part: &str| part.repeat(6_000);
    for part in ["a?", "a*", "a{0,1}", "(a|)", "(|a)"] {
        for grammar in [
            Grammar::Regex(many(part)),
            Grammar::Lark(format!("start: /{}/", many(part))),
            Grammar::Json(json!({ "items": { "type": "string", "pattern": many(part) } })),
            Grammar::Json(json!({ "patternProperties": { many(part): true } })),
        ] {
            let error = refusal(grammar).unwrap_or_default();
            assert!(error.contains("at most 5000 optional parts") && error.contains("got 6000"), "{part}: {error}");
        }
    }
    assert_eq!(refusal(Grammar::Regex(format!("{}b?", "[ab]\\?\\*".repeat(6_000)))), None);
}
