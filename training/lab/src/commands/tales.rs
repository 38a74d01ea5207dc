//! `hearth-lab tales`: makes stories and conversations, measures their information, and judges a model's texts.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Error, Result, bail, ensure};
use clap::value_parser;
use hearth_lab::tales::{
    Kind, Speaker, Tale, Tales,
    judge::{Judge, Judged, Scores, shuffle_names},
};
use hearth_model::{files::partial_file::PartialFile, text::chat::Message};
use hearth_training::{
    cli::{Status, print_json, unwritable},
    data::{
        corpus::{Conversation, read_to_string},
        prepare::OpenTokenizer,
    },
    interrupt::remove_when_interrupted,
};
use rayon::prelude::*;
use serde_json::{Map, Value, json};

/// Makes short stories and conversations about them
///
/// Writes jsonl for `hearth-train tokenizer` and `hearth-train prepare`: stories as `text`, conversations as `messages`
/// with the `expected` properties of the last one. The same seed gives the same tales: with a larger --count, more
/// follow. With --floor, reports the loss that a perfect model would have. With --judge, scores a model's texts.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// File to write; it must not be there
    #[arg(long, value_name = "FILE", required_unless_present_any = ["floor", "judge"], conflicts_with = "judge")]
    out: Option<PathBuf>,

    /// Number of tales
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = value_parser!(u64).range(1..))]
    count: u64,

    /// Seed; a model should be judged with tales of another seed than those it was trained on
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,

    /// Kind of tales
    #[arg(long, value_enum, default_value_t = Kind::Mixed)]
    kind: Kind,

    /// Leave out the last message of conversations, for a model to answer
    #[arg(long, requires = "out")]
    prompts: bool,

    /// Report the information in the tales: in nats per token of this tokenizer, the least loss that a model can have
    #[arg(long, value_name = "TOKENIZER", conflicts_with = "judge")]
    floor: Option<PathBuf>,

    /// Score a jsonl file of stories and answered conversations
    #[arg(long, value_name = "FILE")]
    judge: Option<PathBuf>,

    /// Shuffle the names before judging, to see whether the judge notices
    #[arg(long, requires = "judge")]
    shuffle_names: bool,

    /// Print the result on stdout as one JSON object
    #[arg(long)]
    json: bool,
}

/// Tales that are made together, on all cores.
const BATCH: u64 = 4096;

/// Makes, measures or judges tales.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let mut status = Status::new();
    let tales = Tales::new()?;
    let report = match &args.judge {
        Some(path) => judge(&tales, path, &args, &mut status)?,
        None => make(&tales, &args, &mut status)?,
    };
    if args.json { print_json(&report) } else { Ok(ExitCode::SUCCESS) }
}

/// Makes tales, and writes or measures them.
fn make(tales: &Tales, args: &Args, status: &mut Status) -> Result<Value> {
    let mut out = args.out.as_deref().map(|path| Ok::<_, Error>((path, new_file(path)?))).transpose()?;
    let floor = args.floor.as_deref().map(OpenTokenizer::open).transpose()?;
    let mut sums = Sums::default();
    let mut first = 0;
    while first < args.count {
        let end = args.count.min(first + BATCH);
        let make = |index: u64| {
            let tale = tales.tale(args.kind, args.seed, index)?;
            let n_tokens = floor.as_ref().map_or(Ok(0), |floor| n_tokens(&tale, floor))?;
            Ok((tale, n_tokens))
        };
        let made: Vec<(Tale, u64)> = (first..end).into_par_iter().map(make).collect::<Result<_>>()?;
        for (tale, n_tokens) in &made {
            sums.add(tale, *n_tokens);
            if let Some((path, file)) = &mut out {
                writeln!(file, "{}", line(tale, args.prompts)).map_err(|error| unwritable(path, &error))?;
            }
        }
        first = end;
        status.show(|elapsed| {
            format!("{first} of {} tales, {:.0} tales/s", args.count, first as f64 / elapsed.as_secs_f64())
        });
    }
    if let Some((path, file)) = out {
        file.finish().map_err(|error| unwritable(path, &error))?;
        status.note(&format!("{} tales are in `{}`", args.count, path.display()));
    }
    sums.report(args, status)
}

/// Begins the file at `path`, which must not be there yet.
fn new_file(path: &Path) -> Result<PartialFile> {
    ensure!(!path.exists(), "`{}` exists already\nhint: remove it, or give another file as `--out`", path.display());
    let file = PartialFile::create(path).map_err(|error| unwritable(path, &error))?;
    if let Some(partial) = file.partial_path() {
        remove_when_interrupted(partial);
    }
    Ok(file)
}

/// The line of a tale, without the last message if it is to be answered.
fn line(tale: &Tale, is_prompt: bool) -> Value {
    let mut json = tale.json();
    if let Some(messages) = json.get_mut("messages").and_then(Value::as_array_mut).filter(|_| is_prompt) {
        messages.pop();
    }
    json
}

/// Sums over tales.
#[derive(Debug, Default)]
struct Sums {
    n_tales: u64,
    n_words: u64,
    n_tokens: u64,
    longest: u64,
    nats: f64,
    nats_of_assistant: f64,
}

impl Sums {
    fn add(&mut self, tale: &Tale, n_tokens: u64) {
        self.n_tales += 1;
        self.n_tokens += n_tokens;
        self.longest = self.longest.max(n_tokens);
        for message in &tale.messages {
            self.n_words += message.content.split_whitespace().count() as u64;
            self.nats += message.nats;
            if message.speaker != Some(Speaker::User) {
                self.nats_of_assistant += message.nats;
            }
        }
    }

    fn report(&self, args: &Args, status: &mut Status) -> Result<Value> {
        let seconds = status.elapsed().as_secs_f64();
        let n = self.n_tales.max(1) as f64;
        let (nats, bits) = (self.nats / n, self.nats / n / std::f64::consts::LN_2);
        status.note(&format!(
            "a tale has {:.1} words and {bits:.1} bits ({nats:.2} nats, {:.2} of them in stories and answers), on average; {:.0} \
             tales/s",
            self.n_words as f64 / n,
            self.nats_of_assistant / n,
            n / seconds
        ));
        let mut json = Map::new();
        json.insert("tales".into(), self.n_tales.into());
        json.insert("out".into(), json!(args.out));
        json.insert("words_per_tale".into(), json!(self.n_words as f64 / n));
        json.insert("bits_per_tale".into(), json!(bits));
        json.insert("nats_per_tale".into(), json!(nats));
        json.insert("assistant_nats_per_tale".into(), json!(self.nats_of_assistant / n));
        if args.floor.is_some() {
            let per_token = self.nats / self.n_tokens.max(1) as f64;
            let tokens = self.n_tokens as f64 / n;
            status.note(&format!(
                "floor: {per_token:.4} nats per token; {tokens:.1} tokens per tale on average, {} at most",
                self.longest
            ));
            json.insert("tokens_per_tale".into(), json!(tokens));
            json.insert("longest_tokens".into(), self.longest.into());
            json.insert("nats_per_token".into(), json!(per_token));
        }
        json.insert("seconds".into(), json!(seconds));
        Ok(Value::Object(json))
    }
}

/// The number of tokens that `hearth-train prepare` writes for a tale.
fn n_tokens(tale: &Tale, tokenizer: &OpenTokenizer) -> Result<u64> {
    let role = |speaker: Option<Speaker>| speaker.map_or("", Speaker::role);
    let messages = tale.messages.iter().map(|message| Message::new(role(message.speaker), &*message.content));
    let conversation = Conversation { messages: messages.collect(), tools: None, place: "a tale".to_owned() };
    let text: String = tale.messages.iter().map(|message| message.content.as_str()).collect();
    Ok(tokenizer.n_tokens(&text, Some(&conversation).filter(|_| tale.is_conversation()))? as u64)
}

/// Judges the lines of a file.
fn judge(tales: &Tales, path: &Path, args: &Args, status: &mut Status) -> Result<Value> {
    let text = read_to_string(path)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let parse = |(index, line): (usize, &str)| {
        Judged::parse(line).with_context(|| format!("`{}`, line {}", path.display(), index + 1))
    };
    let mut judged: Vec<Judged> = lines.map(parse).collect::<Result<_>>()?;
    if judged.is_empty() {
        bail!(
            "`{}` has nothing to judge\nhint: give a jsonl file with `text` or `messages` in each line",
            path.display()
        );
    }
    if args.shuffle_names {
        shuffle_names(tales, &mut judged, args.seed);
    }
    let judge = Judge::new(tales);
    let verdicts: Vec<_> = judged.par_iter().map(|judged| (judged.expected.task, judge.judge(judged))).collect();
    let mut scores = Scores::default();
    verdicts.iter().for_each(|(task, verdict)| scores.add(*task, verdict));
    scores.lines().iter().for_each(|line| status.note(line));
    status.note(&format!("all: {:.1} % of {} pass", 100.0 * scores.share(), judged.len()));
    Ok(scores.json())
}
