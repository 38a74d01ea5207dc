//! Tests of the grammar as a whole, and of its texts.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    collections::{BTreeSet, HashMap},
    thread,
};

use super::{
    derivation::{Chooser, tell},
    draw::Draw,
    grammar::{Grammar, Symbol, article},
    judge::{Judge, Judged, shuffle_names},
    read::Derivation,
    walk::Choice,
    *,
};

/// Tales of a kind.
fn made(tales: &Tales, kind: Kind, n: u64) -> Vec<Tale> {
    (0..n).map(|index| tales.tale(kind, 1, index).unwrap()).collect()
}

/// The texts of all messages of tales.
fn texts(made: &[Tale]) -> impl Iterator<Item = &str> {
    made.iter().flat_map(|tale| &tale.messages).map(|message| message.content.as_str())
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|char: char| !char.is_alphanumeric() && char != '-' && char != '\'').filter(|word| !word.is_empty())
}

#[test]
fn tale_is_a_function_of_kind_seed_and_index() {
    let (tales, others) = (Tales::new().unwrap(), Tales::new().unwrap());
    for kind in Kind::ALL {
        let tale = tales.tale(kind, 7, 1_000_000).unwrap();
        assert_eq!(tale, others.tale(kind, 7, 1_000_000).unwrap());
        assert_ne!(tale, tales.tale(kind, 7, 1_000_001).unwrap());
        assert_ne!(tale, tales.tale(kind, 8, 1_000_000).unwrap());
    }
    let stories = made(&tales, Kind::Stories, 5000);
    assert_eq!(texts(&stories).collect::<BTreeSet<_>>().len(), 5000, "no story comes twice");
}

#[test]
fn tale_has_exactly_one_derivation() {
    let tales = Tales::new().unwrap();
    let derivations = |kind: Kind, messages: &[Message]| {
        let messages: Vec<_> = messages.iter().map(|message| (message.speaker, message.content.as_str())).collect();
        read::read(&tales.grammar, tales.start(kind), &messages, 2)
    };
    let check = |kind: Kind, indices: std::ops::Range<u64>| {
        for index in indices {
            let tale = tales.tale(kind, 2, index).unwrap();
            let mut drawn = Recorded { draw: Draw::new(2, kind as u64, index), choices: Vec::new() };
            tell(&tales.grammar, tales.start(kind), &mut drawn).unwrap();
            assert_eq!(derivations(kind, &tale.messages), [drawn.choices], "{:?}", tale.messages);
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| check(Kind::Stories, 0..3000));
        scope.spawn(|| check(Kind::Mixed, 0..1500));
        scope.spawn(|| check(Kind::Conversations, 0..1500));
    });
    let mut tale = tales.tale(Kind::Stories, 2, 0).unwrap();
    tale.messages[0].content.push('!');
    assert!(derivations(Kind::Stories, &tale.messages).is_empty());
}

/// Draws at random, and records the choices.
struct Recorded {
    draw: Draw,
    choices: Derivation,
}

impl Chooser for Recorded {
    fn choose(&mut self, options: &[Choice<'_>]) -> usize {
        let choice = self.draw.choose(options);
        self.choices.push(choice);
        choice
    }
}

/// Goes through all derivations, one after the other.
#[derive(Default)]
struct Enumerate {
    choices: Derivation,
    n_options: Vec<usize>,
}

impl Chooser for Enumerate {
    fn choose(&mut self, options: &[Choice<'_>]) -> usize {
        let at = self.n_options.len();
        self.n_options.push(options.len());
        if self.choices.len() == at {
            self.choices.push(0);
        }
        self.choices[at]
    }
}

impl Enumerate {
    /// Whether there is another derivation.
    fn advance(&mut self) -> bool {
        while let (Some(choice), Some(n_options)) = (self.choices.pop(), self.n_options.pop()) {
            if choice + 1 < n_options {
                self.choices.push(choice + 1);
                self.n_options.clear();
                return true;
            }
        }
        false
    }
}

#[test]
fn text_probabilities_of_a_small_grammar_sum_to_one() {
    let source = "
@kind
  [g=she] hen
  [g=he] rooster
  owl, ant
@they*
  [g=she] she
  [g=he] he
@name
  [g=she] Ada, Ida
  [g=he] Bo

tale
  {A a.kind} named {a.name}[ sang|*3  danced]. {a.They} met {b.name}<more>.
  *2 {?a g=he}{a.Name} was {a a.kind}<more>.

more
  , and {a.they} laughed
  [*2 | loudly]
";

    let grammar = Grammar::parse(&[("small", source)]).unwrap();
    let start = Symbol::Rule(grammar.rule("tale").unwrap());
    let (mut total, mut seen) = (0.0, BTreeSet::new());
    let mut all = Enumerate::default();
    loop {
        let told = tell(&grammar, &start, &mut all).unwrap();
        let said = &told.messages[0];
        total += (-said.nats).exp();
        assert!(seen.insert(said.text.clone()), "{}", said.text);
        let derivations = read::read(&grammar, &start, &[(None, &said.text)], 2);
        assert_eq!(derivations, std::slice::from_ref(&all.choices), "{}", said.text);
        if !all.advance() {
            break;
        }
    }
    assert!((total - 1.0).abs() < 1e-12, "{total}");
    assert!(seen.contains("An owl named Ida danced. She met Bo, and she laughed."), "{seen:?}");
    assert!(seen.contains("Bo was a rooster loudly.") && !seen.iter().any(|text| text.contains("hen named Bo")));
    // The frequencies of texts match their probabilities.
    let mut counts: HashMap<String, (usize, f64)> = HashMap::new();
    for index in 0..20_000 {
        let told = tell(&grammar, &start, &mut Draw::new(3, 0, index)).unwrap();
        let said = &told.messages[0];
        counts.entry(said.text.clone()).or_insert((0, (-said.nats).exp())).0 += 1;
    }
    for (text, (count, probability)) in counts {
        let expected = 20_000.0 * probability;
        assert!((count as f64 - expected).abs() < 6.0 * expected.sqrt() + 6.0, "{text}: {count}, {expected}");
    }
}

#[test]
fn invalid_grammar_is_rejected_with_its_line_or_cause() {
    let cases = [
        ("a\n  {b.c}\n", "line 2"),
        ("a\n  <b>\n", "there is no rule `b`"),
        ("a\n  [b\n", "a `[` is not closed"),
        ("a\n  b]\n", "nothing opens the bracket"),
        ("a\n", "`a` has no alternatives"),
        ("a\n  b\na\n  c\n", "line 3"),
        ("@a b\n  c\n", "`c` has 1 forms, but the list has 2 columns"),
        ("@a\n  c, c\n", "`c` is there already"),
        ("@a\n@a\n", "line 2"),
        ("a\n  *x b\n", "`x` is not a weight"),
        ("a\n  {#b}\n", "a label is `key value`"),
    ];
    for (source, message) in cases {
        let error = Grammar::parse(&[("g.txt", source)]).unwrap_err();
        assert!(format!("{error:#}").contains(message), "{source}: {error:#}");
    }
}

#[test]
fn required_words_of_a_tale_answer_are_chosen_before_the_answer() {
    let tales = Tales::new().unwrap();
    for kind in [Kind::Questions, Kind::Conversations] {
        for index in 0..3000 {
            let told = tell(&tales.grammar, tales.start(kind), &mut Draw::new(4, 0, index)).unwrap();
            assert!(told.keys.iter().all(|key| key.was_bound), "{:?}", told.messages);
            if kind == Kind::Questions {
                assert!(!told.keys.is_empty(), "{:?}", told.messages);
                assert_eq!(told.messages.last().unwrap().nats, 0.0, "{:?}", told.messages);
            }
        }
    }
}

#[test]
fn every_list_and_rule_of_the_tales_grammar_is_used() {
    let grammar = Tales::new().unwrap().grammar;
    let symbols = || grammar.rules.iter().flat_map(|rule| &rule.alternatives).flat_map(|of| &of.symbols);
    for (index, list) in grammar.lists.iter().enumerate() {
        let is_used = symbols().any(|symbol| matches!(symbol, Symbol::Slot(slot) if slot.list == index));
        assert!(is_used, "{:?}", list.columns);
    }
    for (index, rule) in grammar.rules.iter().enumerate() {
        let starts = Kind::ALL.map(Kind::rule);
        let is_used = symbols().any(|symbol| matches!(symbol, Symbol::Rule(used) if *used == index));
        assert!(is_used || starts.contains(&&*rule.name), "{}", rule.name);
    }
}

#[test]
fn tales_have_correct_articles_punctuation_and_lengths() {
    let tales = Tales::new().unwrap();
    let (stories, conversations) = (made(&tales, Kind::Stories, 8000), made(&tales, Kind::Conversations, 8000));
    let mut distinct = BTreeSet::new();
    for text in texts(&stories).chain(texts(&conversations)) {
        for wrong in ["  ", " ,", " .", "..", ",,", "{", "<", "[", "|", "*", " \n", "\n ", "\n\n\n"] {
            assert!(!text.contains(wrong), "`{wrong}`: {text}");
        }
        let words: Vec<&str> = words(text).collect();
        for pair in text.split_whitespace().collect::<Vec<_>>().windows(2) {
            assert_ne!(pair[0].to_lowercase(), pair[1].to_lowercase(), "{text}");
        }
        for pair in words.windows(2) {
            if ["a", "an", "A", "An"].contains(&pair[0]) {
                let small = pair[0].to_lowercase();
                assert_eq!(article(pair[1]), small, "{} {}: {text}", pair[0], pair[1]);
            }
        }
        distinct.extend(words.into_iter().map(str::to_lowercase));
    }
    assert!(distinct.len() >= 3000, "{}", distinct.len());
    for text in texts(&stories) {
        let n_words = words(text).count();
        assert!((60..=170).contains(&n_words), "{n_words}: {text}");
        assert!(text.ends_with(['.', '!', '"']), "{text}");
    }
    for conversation in &conversations {
        let n_words: usize = conversation.messages.iter().map(|message| words(&message.content).count()).sum();
        assert!(n_words <= 200, "{n_words}: {conversation:?}");
    }
    assert_eq!([article("useful"), article("honest"), article("owl"), article("unicorn")], ["a", "an", "an", "a"]);
}

/// Shares that pass, of stories, answers and talk.
fn shares(tales: &Tales, judged: &[Judged]) -> [Option<f64>; 3] {
    let judge = Judge::new(tales);
    [Task::Story, Task::Question, Task::Talk].map(|task| {
        let of_task = judged.iter().filter(|judged| judged.expected.task == task);
        let passes: Vec<bool> = of_task.map(|judged| judge.judge(judged).passes()).collect();
        let n_passed = passes.iter().filter(|passes| **passes).count();
        (!passes.is_empty()).then(|| n_passed as f64 / passes.len() as f64)
    })
}

#[test]
fn judge_passes_tales_and_fails_those_with_shuffled_names() {
    let tales = Tales::new().unwrap();
    for kind in [Kind::Stories, Kind::Requests, Kind::Questions, Kind::Conversations] {
        let lines = made(&tales, kind, 2000).into_iter().map(|tale| tale.json().to_string());
        let mut judged: Vec<Judged> = lines.map(|line| Judged::parse(&line).unwrap()).collect();
        for share in shares(&tales, &judged).into_iter().flatten() {
            assert!(share >= 0.99, "{kind:?}: {share}");
        }
        shuffle_names(&tales, &mut judged, 1);
        let [story, question, _] = shares(&tales, &judged);
        for share in [story, question].into_iter().flatten() {
            assert!(share <= 0.2, "{kind:?} with shuffled names: {share}");
        }
    }
}

#[test]
fn judge_reports_the_criterion_that_an_edited_story_fails() {
    let tales = Tales::new().unwrap();
    let judge = Judge::new(&tales);
    let story = "Once upon a time, there was a brave fox named Ada who lived by the sea. She had a red lamp that she loved very much.\n\n\
                 One sunny day, Ada went to the forest. When she came home, the lamp was gone. Ada felt sad.\n\n\
                 Then she met a wise owl named Tom. They searched until noon. At last, Tom looked under a fern, and there was the \
                 lamp! Ada hugged Tom and felt happy. From that day on, she took good care of the lamp.";
    let parse = |text: &str| {
        let expected =
            r#""expected": {"task": "story", "plot": "lost", "elements": [["kind", "fox"], ["treasure", "lamp"]]}"#;
        let text = serde_json::to_string(text).unwrap();
        Judged::parse(&format!(
            r#"{{"messages": [{{"role": "user", "content": "?"}}, {{"role": "assistant", "content": {text}}}], {expected}}}"#
        ))
        .unwrap()
    };
    let failed = |text: &str| -> Vec<&str> {
        let verdict = judge.judge(&parse(text));
        verdict.0.iter().filter(|(_, holds)| !holds).map(|(criterion, _)| criterion.name()).collect()
    };
    assert_eq!(failed(story), [""; 0]);
    assert_eq!(failed(&story.replace("and there was the lamp", "and there was the kettle")), ["object"]);
    assert_eq!(failed(&story.replace("Ada hugged Tom", "Ida hugged Tom")), ["names"]);
    assert_eq!(failed(&story.replace("Ada hugged Tom", "then Zorblax hugged Tom")), ["names"]);
    assert_eq!(failed(&story.replace("brave fox", "brave badger")), ["elements"]);
    assert_eq!(
        failed(&story.replace("named Tom", "named Ida").replace("Tom", "Ida").replace("She had", "He had")),
        ["pronouns"]
    );
    let end = story.find("Ada hugged").unwrap();
    assert_eq!(failed(&format!("{}Ada went to bed and slept for a long while.", &story[..end])), ["ending"]);
    assert_eq!(failed(story.trim_end_matches(" care of the lamp.")), ["complete"]);

    let question = |answer: &str| {
        let line = json::question(answer);
        judge.judge(&Judged::parse(&line).unwrap()).passes()
    };
    assert!(question("Ada lost her lamp.") && question("It was the lamp."));
    assert!(!question("Ada lost her lamps.") && !question("Tom lost the lamp.") && !question("the lamp"));
    assert!(Judged::parse(r#"{"messages": [{"role": "user", "content": "?"}]}"#).is_err());
}

mod json {
    /// A question with an answer.
    pub(super) fn question(answer: &str) -> String {
        serde_json::json!({
            "messages": [
                { "role": "user", "content": "Ada the fox had a lamp and lost it. What did Ada lose?" },
                { "role": "assistant", "content": answer },
            ],
            "expected": { "task": "question", "answer": ["lamp"] },
        })
        .to_string()
    }
}
