//! Runs on several ranks end with the bits of a run on one. The ranks are threads here; `.ci/mpi-test` does the same with MPI.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{collections::BTreeMap, fs, path::Path};

use burn::tensor::Device;
use hearth_model::files::digest::Digest;
use hearth_training::{
    config::{Layers, Purpose, TrainConfig},
    data::{corpus::Encoder, shard::Tokens, tokenizer_build::BuiltTokenizer},
    interrupt::Interrupt,
    ranks::{Group, threads},
    run::{
        checkpoint::Checkpoint,
        progress::{ProgressLine, Reporter, Style},
        run_dir::{RunDir, Start},
        trainer::{Data, DecoderTokens, RunOutcome, Trainer},
    },
};
use serde_json::Value;

/// Six micro-batches a step, in a tree of eight leaves; gradients that are clipped; dropout, evaluations and samples.
const SETS: [&str; 14] = [
    "model.dropout=0.2",
    "data.rows=epochs",
    "data.micro_batch_size=2",
    "data.tokens_per_step=384",
    "optim.clip=0.3",
    "schedule.kind=constant",
    "schedule.warmup_steps=2",
    "schedule.max_steps=12",
    "eval.every=5",
    "eval.log_every=4",
    "sample.every=6",
    "sample.max_tokens=8",
    "checkpoint.every=4",
    "checkpoint.keep=9",
];

/// The other optimizer, an untied output matrix, and stacked matrices.
const MUON: [&str; 3] = ["model.arch=llama", "optim.matrices=muon", "optim.muon.momentum_warmup_steps=5"];

fn config(sets: &[&str]) -> TrainConfig {
    let sets = SETS.iter().chain(sets).map(|set| (*set).to_owned()).collect();
    let layers =
        Layers { preset: Some("tiny".to_owned()), sets, purpose: Some(Purpose::Quickstart), ..Layers::default() };
    layers.resolve().unwrap()
}

fn data() -> Data {
    let line = |line: usize| format!("line {} of the house, {}\n", line * line % 17, ["one", "two"][line % 2]);
    let text: String = (0..200).map(line).collect();
    let built = BuiltTokenizer::characters(&text, 32).unwrap();
    let tokenizer = built.open().unwrap();
    let ids = Encoder::new(&tokenizer, built.tokenizer_json.as_bytes()).unwrap().encode_all(&text).unwrap();
    let (train, val) = ids.split_at(ids.len() * 4 / 5);
    let split = |ids: &[u32]| Tokens::from_ids(ids.to_vec(), ids.len() as u64).into();
    Data {
        classifier: None,
        eos_token_ids: Vec::new(),
        tokenizer_files: vec![("tokenizer.json".to_owned(), built.tokenizer_json.clone().into_bytes())],
        train: split(train),
        val: split(val),
        hash: Digest::of(text.as_bytes()),
        tokenizer_hash: Digest::of(built.tokenizer_json.as_bytes()),
        tokenizer,
        decoder: DecoderTokens::default(),
    }
}

/// A run in `out`, or its continuation, as one of the ranks of `group`.
fn train(group: &Group, out: &Path, config: &TrainConfig) -> RunOutcome {
    train_until(&Interrupt::default(), group, out, config)
}

/// The same until a signal comes.
fn train_until(interrupt: &Interrupt, group: &Group, out: &Path, config: &TrainConfig) -> RunOutcome {
    let (data, device) = (data(), Device::flex());
    let mut run = RunDir::new(out, Start::Resume).unwrap();
    let checkpoint = Checkpoint::latest(&run, &mut |note| unreachable!("{note}")).unwrap();
    let trainer = match &checkpoint {
        Some(checkpoint) => Trainer::resume(config, &data, (&device, group), checkpoint),
        None => Trainer::new(config, &data, &device, group),
    };
    let trainer = trainer.unwrap();
    // Ranks wait for each other here, so rank 0 creates nothing that another one has not looked for.
    trainer.require_same_start().unwrap();
    let mut reporter = Reporter::new(ProgressLine::new(Box::new(std::io::sink()), Style::Plain));
    if group.is_first() {
        run.begin(config).unwrap();
        reporter = reporter.with_files(&run, trainer.steps_done()).unwrap();
    }
    trainer.run(&run, &mut reporter, interrupt).unwrap()
}

/// What must have the same bits.
fn bits(out: &Path, step: usize) -> BTreeMap<String, Vec<u8>> {
    let checkpoint = format!("checkpoints/step-{step:08}");
    let names = [
        "model/model.safetensors".to_owned(),
        "model/evaluation.json".to_owned(),
        format!("{checkpoint}/model.safetensors"),
        format!("{checkpoint}/train_state/moments.safetensors"),
    ];
    let mut bits: BTreeMap<_, _> =
        names.into_iter().map(|name| (name.clone(), fs::read(out.join(name)).unwrap())).collect();
    let without_time = |line: &str, times: &[&str]| {
        let mut record: serde_json::Map<String, Value> = serde_json::from_str(line).unwrap();
        times.iter().for_each(|time| drop(record.remove(*time)));
        Value::Object(record).to_string() + "\n"
    };
    let metrics = fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    let metrics: String = metrics.lines().map(|line| without_time(line, &["tok_per_sec", "seconds"])).collect();
    let state = fs::read_to_string(out.join(checkpoint).join("train_state/state.json")).unwrap();
    bits.extend([
        ("metrics".to_owned(), metrics.into_bytes()),
        ("state".to_owned(), without_time(&state, &["minutes"]).into_bytes()),
    ]);
    bits
}

fn assert_same(found: &BTreeMap<String, Vec<u8>>, expected: &BTreeMap<String, Vec<u8>>, what: &str) {
    for (name, expected) in expected {
        assert!(found[name] == *expected, "{what}: other bits in {name}");
    }
}

#[test]
fn run_on_several_ranks_has_the_bits_of_a_run_on_one() {
    let experts = ["model.arch=llama", "model.n_experts=8", "optim.router_aux_loss_coef=0.01"];
    for (sets, sizes) in [(&["optim.z_loss=0.001"][..], &[2, 8][..]), (&MUON, &[4]), (&experts, &[4])] {
        let dir = tempfile::tempdir().unwrap();
        let config = config(sets);
        let alone = dir.path().join("1");
        train(&Group::default(), &alone, &config);
        let expected = bits(&alone, 12);
        for &size in sizes {
            let out = dir.path().join(size.to_string());
            threads::run(size, |group| train(&group, &out, &config));
            assert_same(&bits(&out, 12), &expected, &format!("{size} ranks, {sets:?}"));
        }
    }
}

#[test]
fn run_that_goes_on_with_another_number_of_ranks_has_the_bits_of_one_that_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let until = |steps: &str| config(&[&MUON[..], &[steps]].concat());
    let whole = dir.path().join("whole");
    train(&Group::default(), &whole, &until("schedule.max_steps=16"));
    let parts = dir.path().join("parts");
    for (size, steps) in [
        (4, "schedule.max_steps=4"),
        (2, "schedule.max_steps=8"),
        (1, "schedule.max_steps=12"),
        (8, "schedule.max_steps=16"),
    ] {
        threads::run(size, |group| train(&group, &parts, &until(steps)));
    }
    let [parts, whole] = [parts, whole].map(|out| {
        let mut bits = bits(&out, 16);
        // The last step of each part evaluates and samples, too.
        bits.remove("metrics");
        bits
    });
    for name in whole.keys().filter(|name| name.starts_with("checkpoints")) {
        assert!(parts[name] == whole[name], "other bits in {name}");
    }
}

/// The replicas meet after steps 3, 6, 9 and 12, are saved after 6 and 12, and are shared out anew between.
#[test]
fn replicas_on_any_number_of_ranks_have_the_same_bits_also_when_they_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let sets = [
        "data.tokens_per_step=512",
        "parallel.replicas=4",
        "parallel.sync_every=3",
        "eval.every=6",
        "sample.every=6",
        "checkpoint.every=6",
    ];
    let until = |steps: &'static str| config(&[&sets[..], &[steps]].concat());
    let config = until("schedule.max_steps=12");
    let alone = dir.path().join("1");
    let outcome = train(&Group::default(), &alone, &config);
    let expected = bits(&alone, 12);
    for size in [2, 4] {
        let out = dir.path().join(size.to_string());
        threads::run(size, |group| train(&group, &out, &config));
        assert_same(&bits(&out, 12), &expected, &format!("{size} ranks"));
    }
    let parts = dir.path().join("parts");
    threads::run(4, |group| train(&group, &parts, &until("schedule.max_steps=6")));
    threads::run(2, |group| train(&group, &parts, &config));
    assert_same(&bits(&parts, 12), &expected, "a run that goes on");
    let first = config_loss(&alone, 1);
    assert!(outcome.val.unwrap().loss < first, "nothing was learned");
}

/// A signal that is there from the start ends each process after its first step, so all but four of them end between meetings.
#[test]
fn replicas_stopped_after_every_step_have_the_bits_of_a_run_that_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let sets = [
        "data.tokens_per_step=512",
        "parallel.replicas=4",
        "parallel.sync_every=3",
        "eval.every=6",
        "sample.every=6",
        "checkpoint.every=6",
    ];
    let config = config(&sets);
    let whole = dir.path().join("whole");
    train(&Group::default(), &whole, &config);
    let stopped = dir.path().join("stopped");
    for (done, size) in (1..=12).zip([4, 2, 1].into_iter().cycle()) {
        let outcomes = threads::run(size, |group| {
            let interrupt = Interrupt::default();
            interrupt.receive(15);
            train_until(&interrupt, &group, &stopped, &config)
        });
        assert!(
            outcomes.iter().all(|outcome| (outcome.step, outcome.is_complete) == (done, done == 12)),
            "{outcomes:?}"
        );
    }
    assert_same(&bits(&stopped, 12), &bits(&whole, 12), "a run stopped after every step");
}

/// The loss of a step.
fn config_loss(out: &Path, step: u64) -> f64 {
    let metrics = fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    let records = metrics.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut of_step = records.filter(|record| record["step"] == step && record.get("loss").is_some());
    of_step.next().unwrap()["loss"].as_f64().unwrap()
}

#[test]
fn replicas_that_cannot_meet_where_they_must_are_refused() {
    let refused = |sets: &[&str]| config(sets).validate().unwrap_err().to_string();
    let replicas = ["data.tokens_per_step=512", "parallel.replicas=4", "parallel.sync_every=3", "sample.every=6"];
    let error = refused(&replicas);
    assert!(error.contains("`eval.every` must be a multiple of `parallel.sync_every`, which is 3, got 5"), "{error}");
    let error = refused(&["parallel.replicas=4"]);
    assert!(error.contains("must divide the micro-batches of a step, which are 6, got 4\nhint: "), "{error}");
    let sets = ["parallel.replicas=2", "parallel.sync_every=2", "eval.every=4", "checkpoint.every=4", "sample.every=4"];
    let config = config(&sets);
    let errors =
        threads::run(4, |group| Trainer::new(&config, &data(), &Device::flex(), &group).unwrap_err().to_string());
    assert!(errors[0].contains("2 replicas, which at most 2 processes can share, got 4\nhint: "), "{}", errors[0]);
}

#[test]
fn optimizer_state_falls_with_the_ranks_and_a_step_sends_gradient_and_weights_once() {
    let dir = tempfile::tempdir().unwrap();
    // Eight micro-batches, so that all ranks have gradients.
    let config = config(&[&MUON[..], &["data.tokens_per_step=512"]].concat());
    let group = Group::default();
    let (data, device) = (data(), Device::flex());
    let n_params = Trainer::new(&config, &data, &device, &group).unwrap().n_params();
    let gradient_bytes = 4 * n_params as u64;
    let mut state_bytes = Vec::new();
    for size in [2, 4] {
        let out = dir.path().join(size.to_string());
        let costs = threads::run(size, |group| train(&group, &out, &config)).remove(0).costs;
        assert_eq!(costs.len(), size);
        // A vocabulary of letters: the largest state is that of a matrix of the MLP, or of the embedding.
        let all: u64 = costs.iter().map(|cost| cost.optimizer_bytes).sum();
        let largest = 2 * gradient_bytes / 8;
        for cost in &costs {
            assert!(cost.optimizer_bytes <= all / size as u64 + largest, "{costs:?}");
            let share = gradient_bytes * (size as u64 - 1) / size as u64;
            // The gradient and the weights, and what ranks tell each other.
            assert!(cost.bytes_sent_per_step <= 2 * share * 11 / 10 + share, "{costs:?}, a share of {share}");
        }
        // A tree over the ranks has one edge less than ranks, and each value goes over each edge twice.
        let sent: u64 = costs.iter().map(|cost| cost.bytes_sent_per_step + 1).sum();
        assert!(sent >= 2 * (size as u64 - 1) * gradient_bytes, "{costs:?}, a gradient of {gradient_bytes}");
        assert!(all >= gradient_bytes, "{costs:?}: Muon has one value for each of a matrix's, and AdamW two");
        state_bytes.push(all);
    }
    assert_eq!(state_bytes[0], state_bytes[1]);
}

#[test]
fn rank_with_other_data_is_refused_by_all_ranks() {
    let config = config(&[]);
    let errors = threads::run(2, |group| {
        let mut data = data();
        if group.rank() == 1 {
            data.hash = Digest::of(b"other");
        }
        let trainer = Trainer::new(&config, &data, &Device::flex(), &group).unwrap();
        trainer.require_same_start().unwrap_err().to_string()
    });
    for error in errors {
        assert!(
            error.starts_with("rank 1 has another data set than rank 0: ") && error.contains("\nhint: "),
            "{error}"
        );
    }
}

#[test]
fn more_ranks_than_can_share_a_step_are_refused() {
    let config = config(&["data.tokens_per_step=64"]);
    let errors =
        threads::run(2, |group| Trainer::new(&config, &data(), &Device::flex(), &group).unwrap_err().to_string());
    assert!(errors[0].contains("1 micro-batch, which at most 1 process can share, got 2\nhint: "), "{}", errors[0]);
}
