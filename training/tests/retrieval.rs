//! `hearth-train eval retrieval`: its measures against pytrec_eval (`golden/retrieval.py`), and the command.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::Path,
};

use hearth_training::eval::retrieval::{Text, measures_of, search};
use serde::Deserialize;
use serde_json::Value;

use crate::mlm::Folder;

#[derive(Deserialize)]
struct Golden {
    cutoffs: Vec<usize>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    scores: BTreeMap<String, f32>,
    judged: BTreeMap<String, i64>,
    ndcg: Vec<f64>,
    mrr: Vec<f64>,
    recall: Vec<f64>,
    map: f64,
}

#[test]
fn measures_of_rankings_with_ties_and_grades_match_pytrec_eval() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/retrieval.json");
    let Golden { cutoffs, cases } = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    for (number, Case { scores, judged, ndcg, mrr, recall, map }) in cases.into_iter().enumerate() {
        let documents: Vec<Text> = scores.keys().map(|id| Text { id: id.clone(), text: String::new() }).collect();
        // Of one component, so that the scores are what they are.
        let vectors: Vec<Vec<f32>> = scores.values().map(|score| vec![*score]).collect();
        let found = search(&[vec![1.0]], &vectors, &documents, (100, &[None]));
        let ranking: Vec<usize> = found[0].iter().map(|(document, _)| *document).collect();
        // What was not found is judged too.
        let place = |id: &String| scores.keys().position(|other| other == id);
        let of_documents: HashMap<usize, i64> =
            judged.iter().filter_map(|(id, judgment)| Some((place(id)?, *judgment))).collect();
        let unfound: Vec<i64> =
            judged.iter().filter(|(id, _)| place(id).is_none()).map(|(_, judgment)| *judgment).collect();
        let measures = measures_of(&ranking, &of_documents, &unfound, &cutoffs);
        let pairs = [(&measures.ndcg, &ndcg), (&measures.mrr, &mrr), (&measures.recall, &recall)];
        for (found, expected) in pairs.into_iter().flat_map(|(found, expected)| found.iter().zip(expected)) {
            assert!((found - expected).abs() < 1e-6, "case {number}: {found}, expected {expected}: {measures:?}");
        }
        assert!((measures.map - map).abs() < 1e-6, "case {number}: {}, expected {map}", measures.map);
    }
}

#[test]
fn retrieval_command_measures_an_encoder_and_a_language_model_and_refuses_what_does_not_fit() {
    let folder = Folder::new();
    folder.encoder("base");
    fs::create_dir_all(folder.path("beir/qrels")).unwrap();
    let text = |n: usize| format!("line {} of the {} house", n % 5, "very ".repeat(n));
    let corpus: String =
        (0..8).map(|n| format!("{{\"_id\": \"d{n}\", \"title\": \"\", \"text\": {:?}}}\n", text(n))).collect();
    // Each query is the text of a document.
    let queries: String = (0..3).map(|n| format!("{{\"_id\": \"q{n}\", \"text\": {:?}}}\n", text(n))).collect();
    let qrels: String = (0..3).map(|n| format!("q{n}\td{n}\t1\n")).collect();
    folder.write("beir/corpus.jsonl", &corpus);
    folder.write("beir/queries.jsonl", &queries);
    folder.write("beir/qrels/test.tsv", &format!("query-id\tcorpus-id\tscore\n{qrels}"));
    let eval = ["eval", "retrieval", "base", "--data", "beir", "--device=cpu"];
    let output = folder.run(&[&eval[..], &["--json", "--cutoffs", "1,3", "--out", "found.jsonl"]].concat());
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{stderr}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for measure in ["ndcg_1", "ndcg_3", "mrr_3", "recall_3", "map"] {
        assert_eq!(report[measure], 1.0, "{measure}: {report}");
    }
    assert_eq!((&report["n_documents"], &report["pooling"]), (&8.into(), &"mean".into()));
    assert!(stderr.contains("texts were cut at 32 tokens"), "{stderr}");
    let lines = fs::read_to_string(folder.path("found.jsonl")).unwrap();
    let first: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!((&first["query"], &first["ranking"][0][0]), (&"q0".into(), &"d0".into()));

    let decoder = crate::finetune::model().display().to_string();
    let output = folder.run(&["eval", "retrieval", &decoder, "--data", "beir", "--device=cpu"]);
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(stdout.contains("@10") && stdout.contains("3 queries, 8 documents"), "{stdout}");

    let error = folder.fail(&[&eval[..], &["--split", "dev"]].concat());
    assert!(error.contains("dev.tsv"), "{error}");
    let error = folder.fail(&[&eval[..], &["--depth", "50"]].concat());
    assert!(error.contains("`--depth 50` must be at least"), "{error}");
    let error = folder.fail(&["eval", "loss", "base", "--data", "text.txt", "--device=cpu"]);
    assert!(error.contains("is an encoder, which writes no text"), "{error}");
}
