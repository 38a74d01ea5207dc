//! Conversations with models that have recurrent layers: of each turn, little more is computed than what is new, and the answers have
//! the same bits as without the prefix cache.

use std::sync::Arc;

use burn::tensor::Device;
use hearth_engine::{EngineOptions, Models, Speculation, prefix_cache::PrefixSalt, request::RequestParts};
use hearth_model::{
    TokenId, config::GptConfig, decode::sampling::SamplingParams, gpt::kv_cache::PAGE_SIZE,
    weights::model_dir::LoadedModel,
};
use hearth_server::engine::Engine;

use crate::{
    engine::{parts, prompt},
    layer_kinds::configs,
    prefix_sharing::{ClientAnswer, answers},
    support::{self, EOS, OPTIONS, is_idle, wait_for},
};

const HEADER: usize = 3;
const THINK: TokenId = 60;
/// The first token of an edited question that is another one.
const EDITED_FROM: usize = 10;

/// What a template does with what was thought in turns before the last.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Thoughts {
    Kept,
    Dropped,
}

/// A message of the user and the answer to it, whose first half is a thought.
#[derive(Clone, Debug)]
struct Turn {
    question: Vec<TokenId>,
    answer: Vec<TokenId>,
}

/// As chat templates do: a header before and [`EOS`] behind each message, and at the end what an answer begins with.
fn render(turns: &[Turn], thoughts: Thoughts) -> Vec<TokenId> {
    let header = |role: TokenId| [91, role, 93];
    let mut ids = Vec::new();
    for (index, Turn { question, answer }) in turns.iter().enumerate() {
        ids.extend(header(1).into_iter().chain(question.iter().copied()).chain([EOS]));
        ids.extend(header(2));
        let is_last = index + 1 == turns.len();
        if is_last || thoughts == Thoughts::Kept {
            ids.push(THINK);
        }
        if !is_last {
            let start = if thoughts == Thoughts::Kept { 0 } else { answer.len() / 2 };
            ids.extend(answer[start..].iter().copied().chain([EOS]));
        }
    }
    ids
}

/// Answers in an engine, and what it has computed.
struct Conversation {
    engine: Engine,
    /// An engine in which each request has a salt of its own.
    without_cache: Engine,
    thoughts: Thoughts,
    turns: Vec<Turn>,
    texts: Vec<Vec<TokenId>>,
    n_requests: u64,
}

/// What the answer to a turn took.
#[derive(Debug)]
struct Work {
    n_computed: usize,
    /// Tokens behind what is common with a text that was computed.
    n_new: usize,
}

impl Conversation {
    fn new(config: &GptConfig, thoughts: Thoughts, options: &EngineOptions) -> Self {
        let engine = |speculation: Speculation| {
            let config = config.clone();
            let load = move || {
                let gpt = support::gpt_of(&config, &Device::flex(), 0.0);
                Ok(Models::from(LoadedModel { gpt, ..support::model() }))
            };
            Engine::start(load, EngineOptions { speculation, ..options.clone() }).unwrap()
        };
        Self {
            engine: engine(options.speculation),
            without_cache: engine(Speculation::Off),
            thoughts,
            turns: Vec::new(),
            texts: Vec::new(),
            n_requests: 0,
        }
    }

    /// Answers the last turn, whose answer may be there from before.
    async fn answer(&mut self) -> Work {
        self.n_requests += 1;
        let ids = render(&self.turns, self.thoughts);
        let sampling = SamplingParams { temperature: 0.7, seed: self.n_requests, ..SamplingParams::default() };
        let n_answer = 30 + 11 * (self.n_requests as usize % 5);
        let mut request = RequestParts { logprobs: Some(2), ..parts(ids.clone(), n_answer, sampling) };
        request.stop.stop_token_ids = Arc::new([EOS].into());
        let salted = PrefixSalt::of_request(&self.n_requests.to_string());
        let uncached = RequestParts { prefix_salt: Some(salted), ..request.clone() };
        let (expected, _) = answers(&self.without_cache, &[uncached]).await;
        let (found, n_cached) = answers(&self.engine, &[request]).await;
        assert_eq!(found, expected, "turn {}", self.turns.len());
        wait_for(&self.engine, is_idle).await;
        let n_common = |text: &Vec<TokenId>| text.iter().zip(&ids).take_while(|(ours, theirs)| ours == theirs).count();
        let work = Work {
            n_computed: ids.len() - n_cached,
            n_new: ids.len() - self.texts.iter().map(n_common).max().unwrap_or(0),
        };
        let [ClientAnswer { token_ids, .. }] = found.as_slice() else { unreachable!("one answer") };
        // The last token is not computed.
        self.texts.push([&ids, &token_ids[..token_ids.len().saturating_sub(1)]].concat());
        let answer = token_ids.iter().copied().filter(|&id| id != EOS).collect();
        self.turns.last_mut().unwrap().answer = answer;
        work
    }

    async fn ask(&mut self, question: Vec<TokenId>) -> Work {
        self.turns.push(Turn { question, answer: Vec::new() });
        self.answer().await
    }

    /// The length of the longest message.
    fn longest_message(&self) -> usize {
        let messages = self.turns.iter().flat_map(|turn| [&turn.question, &turn.answer]);
        messages.map(|text| HEADER + 1 + text.len() + 1).max().unwrap_or(0)
    }
}

fn question(turn: usize) -> Vec<TokenId> {
    prompt(20 + 13 * (turn % 4), 3 + turn as u32)
}

/// Ten turns, one edited in its middle and in its first words, the one after it, and one regenerated.
async fn check(
    name: &str,
    config: &GptConfig,
    thoughts: Thoughts,
    options: &EngineOptions,
    most_again: impl Fn(&Conversation) -> usize,
) {
    let mut conversation = Conversation::new(config, thoughts, options);
    let check = |what: &str, conversation: &Conversation, work: Work| {
        let most = work.n_new + most_again(conversation);
        assert!(work.n_computed <= most, "{name}, {thoughts:?}, {what}: {work:?}, and {most} are allowed");
    };
    for turn in 0..10 {
        let work = conversation.ask(question(turn)).await;
        check(&format!("turn {turn}"), &conversation, work);
    }
    for (turn, from) in [(6, EDITED_FROM), (4, 0)] {
        conversation.turns.truncate(turn);
        let mut edited = question(turn);
        edited[from..].iter_mut().for_each(|id| *id = (*id + 1) % 256);
        let work = conversation.ask(edited).await;
        check(&format!("turn {turn} edited"), &conversation, work);
        let work = conversation.ask(question(turn + 20)).await;
        check(&format!("the turn behind {turn}"), &conversation, work);
        let work = conversation.answer().await;
        assert!(work.n_computed <= PAGE_SIZE, "{name}, {thoughts:?}, regenerated: {work:?}");
    }
}

fn recurrent() -> impl Iterator<Item = (&'static str, GptConfig)> {
    configs().into_iter().filter(|(name, _)| ["gated delta net", "Mamba-2", "both"].contains(name))
}

#[tokio::test]
async fn turns_of_conversations_compute_little_more_than_what_is_new() {
    for (name, config) in recurrent() {
        for thoughts in [Thoughts::Kept, Thoughts::Dropped] {
            // Of a message that is another one now, what comes before the difference.
            check(name, &config, thoughts, &OPTIONS, |_| PAGE_SIZE + HEADER + EDITED_FROM).await;
        }
    }
}

/// What was drafted is not kept at each page.
#[tokio::test]
async fn turns_of_drafted_conversations_compute_at_most_a_message_and_a_page_more_than_what_is_new() {
    let options = EngineOptions { speculation: Speculation::PromptLookup { n_tokens: 6 }, ..OPTIONS };
    for (name, config) in recurrent() {
        for thoughts in [Thoughts::Kept, Thoughts::Dropped] {
            check(name, &config, thoughts, &options, |conversation| PAGE_SIZE + conversation.longest_message()).await;
        }
    }
}

/// However few states are kept, answers are the same; what is kept is within the number.
#[tokio::test]
async fn conversations_with_few_kept_states_have_the_same_answers() {
    let options = EngineOptions { kept_states: Some(2), max_batch_size: 1, ..OPTIONS };
    for (name, config) in recurrent() {
        check(name, &config, Thoughts::Dropped, &options, |conversation| conversation.texts.last().map_or(0, Vec::len))
            .await;
    }
}
