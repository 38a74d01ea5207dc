#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::path::Path;

use serde_json::{Map, Value, json};

use super::*;
use crate::{
    decode::constraint::{Grammar, GrammarCompiler},
    text::tokenizer::Tokenizer,
};

/// Tokens of several characters, besides the single characters; the last one is special.
const LONGER: [&str; 9] = ["<t", ">", ">{", ">x", "a<t>{", "a<t>x", "}a", "</think>", "[CALL]"];

fn tokenizer() -> Tokenizer {
    let single = ('a'..='z').chain("{}</[]\" ".chars()).map(String::from);
    let vocab: Map<String, Value> =
        single.chain(LONGER.map(String::from)).zip(0..).map(|(token, id)| (token, id.into())).collect();
    let special = json!({
        "id": vocab["[CALL]"], "content": "[CALL]", "special": true,
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
    });
    let json = json!({
        "added_tokens": [special], "decoder": { "type": "Fuse" },
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "a" },
    });
    Tokenizer::from_json(json.to_string().as_bytes(), None, Path::new("tokenizer.json")).unwrap()
}

fn rules(marks: &[&str], after: AfterGrammar) -> WatchRules {
    WatchRules { marks: marks.iter().map(|mark| Mark::anywhere(mark)).collect(), after, shows_special: true }
}

struct Text {
    tokenizer: Tokenizer,
    watch: Watch,
}

impl Text {
    /// After a mark, the grammar allows `{}` and `{x}`.
    fn new(rules: WatchRules) -> Self {
        let tokenizer = tokenizer();
        let grammar = Grammar::Lark("start: \"{\" \"x\"? \"}\"".into());
        let grammar = GrammarCompiler::new(&tokenizer).unwrap().compile(&grammar, "tools").unwrap();
        Self { tokenizer, watch: Watch::new(grammar, rules) }
    }

    fn id(&self, token: &str) -> TokenId {
        self.tokenizer.token_id(token).unwrap()
    }

    /// The tokens that may not come next.
    fn forbidden(&self) -> Vec<String> {
        let logits = vec![0.0; self.tokenizer.vocab_size()];
        let allowed = self.watch.restrict(&logits, &BTreeSet::new()).unwrap();
        let ids = (0..).zip(allowed).filter(|(_, logit)| *logit < 0.0).map(|(id, _)| id);
        ids.map(|id: TokenId| String::from_utf8(self.tokenizer.token_bytes(id)).unwrap()).collect()
    }

    /// Adds tokens, all of which must be allowed. Returns whether the text is complete.
    fn push(&mut self, tokens: &[&str]) -> bool {
        let mut is_complete = false;
        for token in tokens {
            assert!(!is_complete, "{token}");
            assert!(!self.forbidden().contains(&(*token).to_owned()), "{token}");
            let id = self.id(token);
            is_complete = self.watch.accept(id).unwrap();
        }
        is_complete
    }
}

#[test]
fn grammar_holds_from_the_end_of_a_mark_to_its_own_end_and_again_after_the_next_mark() {
    let mut text = Text::new(rules(&["<t>"], AfterGrammar::Sleep));
    for _ in 0..2 {
        text.push(&["a", "{", "<", "<t"]);
        assert!(!text.watch.is_bound());
        text.push(&[">"]);
        assert!(text.watch.is_bound());
        assert!(text.forbidden().iter().all(|token| token != "{") && text.forbidden().contains(&"a".into()));
        text.push(&["{", "x", "}"]);
        assert!(!text.watch.is_bound());
    }
    let mut text = Text::new(rules(&["<t>"], AfterGrammar::End));
    assert!(text.push(&["<t", ">{", "}"]));
}

#[test]
fn tokens_that_complete_a_mark_are_forbidden_unless_their_rest_fits() {
    let mut text = Text::new(rules(&["<t>", "[CALL]"], AfterGrammar::Sleep));
    assert_eq!(text.forbidden(), ["a<t>x"]);
    text.push(&["<t"]);
    assert_eq!(text.forbidden(), [">x", "a<t>x"]);
    text.push(&["a"]);
    assert_eq!(text.forbidden(), ["a<t>x"]);
    text.push(&["a<t>{"]);
    assert!(text.watch.is_bound());
    text.push(&["}", "[CALL]", "{", "}", "[CALL]"]);
    assert!(text.watch.is_bound());
}

#[test]
fn special_tokens_that_the_text_does_not_show_are_no_marks() {
    let mut text = Text::new(WatchRules { shows_special: false, ..rules(&["[CALL]"], AfterGrammar::Sleep) });
    text.push(&["[CALL]"]);
    assert!(!text.watch.is_bound());
    text.push(&["[", "[CALL]"]);
    text.watch.accept(text.id("a")).unwrap();
    assert!(!text.watch.is_bound());
}

#[test]
fn marks_do_not_count_in_a_silence() {
    let mut text = Text::new(rules(&["<t>"], AfterGrammar::Sleep));
    text.push(&["<t"]);
    text.watch.silence();
    assert_eq!(text.forbidden(), [""; 0]);
    text.push(&[">", "<t", ">x", "a<t>x"]);
    assert!(!text.watch.wake("x <t").unwrap() && !text.watch.is_bound());
    assert_eq!(text.forbidden(), [">x", "a<t>x"]);
    text.push(&[">"]);
    assert!(text.watch.is_bound());
    // Within the grammar's text, `silence` has no effect.
    text.watch.silence();
    assert!(text.watch.is_bound() && !text.watch.wake("<t>").unwrap());
    text.push(&["{", "}"]);
    // A mark may follow directly, and the grammar's text too.
    for (rest, is_bound) in [("<t>", true), ("<t>{", true), ("<t>{}", false), ("<t>a", false)] {
        let mut watch = text.watch.clone();
        watch.silence();
        assert!(!watch.wake(rest).unwrap());
        assert_eq!(watch.is_bound(), is_bound, "{rest}");
    }
}

#[test]
fn mark_at_the_start_counts_only_there_and_after_a_call() {
    let start = || Mark::at_start(&["{", "x"], [b" ", b" "], "{x");
    let at_start = WatchRules { marks: vec![start()], ..rules(&[], AfterGrammar::Sleep) };
    let mut text = Text::new(at_start.clone());
    text.push(&["a", "{", "x", "a"]);
    assert!(!text.watch.is_bound());
    let mut text = Text::new(at_start);
    text.push(&[" ", "{", " "]);
    assert!(!text.watch.is_bound());
    text.push(&["x"]);
    assert!(text.watch.is_bound());
    text.push(&["}", " ", "{", "x"]);
    assert!(text.watch.is_bound());
}

#[test]
fn outlook_after_drafts_is_that_of_the_text_with_them() {
    let mut text = Text::new(rules(&["<t>"], AfterGrammar::Sleep));
    // A clone reads the drafts.
    let outlook = |tokens: &[&str]| {
        let mut watch = text.watch.clone();
        tokens.iter().for_each(|token| assert!(!watch.accept(text.id(token)).unwrap()));
        watch.outlook()
    };
    assert_eq!(outlook(&["<t", ">"]), Outlook::Bound);
    let Outlook::Free(forbidden) = outlook(&["a", "<t"]) else { panic!("bound") };
    assert!(forbidden.contains(&text.id(">x")));
    assert_eq!(outlook(&["<t", ">", "{", "}", "<t"]), Outlook::Free(Arc::clone(&forbidden)));
    text.push(&["a", "<t"]);
    assert_eq!(text.watch.outlook(), Outlook::Free(forbidden));
}
