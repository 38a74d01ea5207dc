//! Texts under JSON Schemas, for `model/tests/schemas/check_schemas.py`: reads lines such as
//! `{"schema": {..}, "texts": ["{}", ..], "walks": 6, "seed": 1}`, and writes a line for each: which texts the schema's
//! grammar admits (true, or the byte at which it does not), and random texts (null if they did not come to an end).
#![expect(clippy::unwrap_used, clippy::print_stdout, clippy::panic, reason = "a tool for tests")]

use std::{io, panic};

use hearth_model::decode::constraint::Grammar;
use serde_json::{Value, json};

#[path = "../tests/schemas/byte_texts.rs"]
mod byte_texts;

use byte_texts::{admits, compiler, random_text};

fn main() {
    let compiler = compiler();
    for line in io::stdin().lines() {
        let case: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let grammar = match compiler.compile(&Grammar::Json(case["schema"].clone()), "schema") {
            Ok(grammar) => grammar,
            Err(error) => {
                println!("{}", json!({ "at": error.at, "refused": error.what }));
                continue;
            }
        };
        let texts = case["texts"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let admitted: Vec<Value> =
            texts.map(|text| admits(&grammar, text).map_or_else(|at| at.into(), |()| true.into())).collect();
        let seed = case["seed"].as_u64().unwrap_or(1) * 1000;
        let walks = (seed..seed + case["walks"].as_u64().unwrap_or(0)).map(|seed| {
            let walk = panic::catch_unwind(panic::AssertUnwindSafe(|| random_text(&grammar, seed, 600)));
            walk.map_or_else(|_| json!({ "error": "no token can continue" }), |text| json!({ "text": text }))
        });
        println!("{}", json!({ "admitted": admitted, "walks": walks.collect::<Vec<_>>() }));
    }
}
