//! `hearth-train eval retrieval`: search by text vectors, against judgments.

use std::{collections::BTreeMap, path::PathBuf, process::ExitCode, sync::Arc};

use anyhow::{Result, bail, ensure};
use hearth_model::{
    gpt::pooling::{DenseLayer, OwnPooling, Pooling, VectorScale, VectorSteps},
    text::tokenizer::{CutAt, EncodeOptions},
    weights::model_dir::LoadedModel,
};
use hearth_training::{
    cli::{ModelArgs, OpenModel, Status, progress_line},
    eval::{
        classify::{Embedder, EncodedText},
        retrieval::{Measures, RetrievalData, Text, measures_of, search},
    },
};
use serde::Serialize;

use super::data::OutArgs;

/// Measures how well a model's vectors find documents: nDCG, MRR, recall, MAP
///
/// Data are in the layout of BEIR: a folder with `corpus.jsonl`, `queries.jsonl` and `qrels/test.tsv`. Vectors are
/// computed as in `/v1/embeddings`, and documents are ranked by cosine similarity. Measures are as in `pytrec_eval`; a
/// document with the id of a query does not count for that query, as in BEIR. Texts that are too long are cut at the
/// end.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// Folder with `corpus.jsonl`, `queries.jsonl` and `qrels/`
    #[arg(long, value_name = "DIR")]
    data: PathBuf,

    /// Split of the relevance judgments: `qrels/SPLIT.tsv`
    #[arg(long, default_value = "test")]
    split: String,

    /// Prompt before a query, such as `query: `
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    query_prompt: String,

    /// Prompt before a document, such as `passage: `
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    document_prompt: String,

    /// Numbers of documents to measure at
    #[arg(long, value_name = "K,...", value_delimiter = ',', default_value = "1,5,10,100",
        value_parser = clap::value_parser!(u32).range(1..))]
    cutoffs: Vec<u32>,

    /// Number of documents in a ranking; MAP is over all of them
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    depth: u32,

    #[command(flatten)]
    out: OutArgs,
}

/// The JSON output of `--json`. Measures with a cutoff have a value for each.
#[derive(Debug, Serialize)]
struct Report {
    model: String,
    dtype: String,
    pooling: &'static str,
    n_queries: usize,
    n_documents: usize,
    /// Number of texts whose end was cut.
    n_cut: usize,
    #[serde(flatten)]
    measures: BTreeMap<String, f64>,
    seconds: f64,
}

/// A line of `--out`.
#[derive(Debug, Serialize)]
struct QueryLine<'a> {
    query: &'a str,
    #[serde(flatten)]
    measures: BTreeMap<String, f64>,
    /// The first documents with their scores, as many as the largest cutoff.
    ranking: Vec<(&'a str, f32)>,
}

/// Reads, embeds, searches, measures, reports.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let names = ["corpus.jsonl".to_owned(), "queries.jsonl".to_owned(), format!("qrels/{}.tsv", args.split)];
    args.out.check(&names.map(|name| args.data.join(name)))?;
    let data = RetrievalData::read(&args.data, &args.split)?;
    let cutoffs: Vec<usize> = args.cutoffs.iter().map(|cutoff| *cutoff as usize).collect();
    let (depth, deepest) = (args.depth as usize, cutoffs.iter().copied().max().unwrap_or(1));
    ensure!(depth >= deepest, "`--depth {depth}` must be at least the largest of `--cutoffs`, {deepest}");
    let OpenModel { loaded, name, .. } = args.model.open_any()?;
    let (pooling, layers) = own_pooling(&loaded)?;
    let mut status = Status::new();
    data.notes.iter().for_each(|note| status.note(note));
    let limit = loaded.text_limit.unwrap_or(usize::MAX).min(loaded.gpt.config().max_seq_len);
    let mut texts = Vec::new();
    let mut n_cut = 0;
    for (prompt, text) in data
        .documents
        .iter()
        .map(|text| (&args.document_prompt, text))
        .chain(data.queries.iter().map(|text| (&args.query_prompt, text)))
    {
        let Text { id, text } = text;
        let encoded =
            loaded.tokenizer.encode_within(&format!("{prompt}{text}"), (limit, CutAt::End), EncodeOptions::PROMPT)?;
        ensure!(!encoded.token_ids.is_empty(), "the text `{id}` has no tokens\nhint: remove it, or add a text");
        n_cut += usize::from(encoded.n_cut > 0);
        texts.push(EncodedText::from(encoded.token_ids));
    }
    if n_cut > 0 {
        status.note(&format!("{n_cut} texts were cut at {limit} tokens, which is what the model reads"));
    }
    let steps = VectorSteps { layers, dimensions: None, scale: VectorScale::Unit };
    let embedder = Embedder::new(&loaded.gpt)?;
    let mut progress = |n_done| progress_line(&mut status, "texts", n_done, texts.len());
    let vectors: Vec<Vec<f32>> =
        embedder.embed(&texts, &[(pooling, steps)], &mut progress)?.into_iter().map(|mut one| one.remove(0)).collect();
    status.clear();
    let (documents, queries) = vectors.split_at(data.documents.len());
    let own = data.own_documents();
    let n_own = own.iter().flatten().count();
    if n_own > 0 {
        status.note(&format!("{n_own} queries have the id of a document, which does not count for them"));
    }
    let rankings = search(queries, documents, &data.documents, (depth, &own));
    let of_query = |(ranking, judgments): (&Vec<(usize, f32)>, &hearth_training::eval::retrieval::Judgments)| {
        let places: Vec<usize> = ranking.iter().map(|(document, _)| *document).collect();
        measures_of(&places, &judgments.of_documents, &judgments.unfound, &cutoffs)
    };
    let measured: Vec<Measures> = rankings.iter().zip(&data.judgments).map(of_query).collect();
    let mean = Measures::mean(&measured);
    let lines: Vec<QueryLine<'_>> = data
        .queries
        .iter()
        .zip(&rankings)
        .zip(&measured)
        .map(|((query, ranking), measures)| QueryLine {
            query: &query.id,
            measures: named(measures, &cutoffs),
            ranking: ranking.iter().take(deepest).map(|(at, score)| (&*data.documents[*at].id, *score)).collect(),
        })
        .collect();
    let report = Report {
        model: name,
        dtype: loaded.gpt.dtype().to_string(),
        pooling: Pooling::ALL.iter().find(|(_, other)| *other == pooling).map_or("", |(name, _)| name),
        n_queries: data.queries.len(),
        n_documents: data.documents.len(),
        n_cut,
        measures: named(&mean, &cutoffs),
        seconds: status.elapsed().as_secs_f64(),
    };
    let code = args.model.print(&report, &text(&report, &mean, &cutoffs))?;
    args.out.write(&lines)?;
    Ok(code)
}

/// The pooling that the model's own files state; the mean if they state none.
fn own_pooling(loaded: &LoadedModel) -> Result<(Pooling, Arc<[DenseLayer]>)> {
    match &loaded.own_pooling {
        OwnPooling::Unstated => Ok((Pooling::Mean, Arc::default())),
        OwnPooling::As(pooling) => Ok((*pooling, Arc::default())),
        OwnPooling::Layered(pooling, layers) => Ok((*pooling, layers.clone())),
        OwnPooling::Late(_) => bail!(
            "the model keeps a vector for each token (late interaction), and `eval retrieval` compares one for each text"
        ),
        OwnPooling::Unsupported(what) => bail!("the model's own way of making vectors is not supported: {what}"),
    }
}

/// Measures by name, such as `ndcg_10`.
fn named(measures: &Measures, cutoffs: &[usize]) -> BTreeMap<String, f64> {
    let lists = [("ndcg", &measures.ndcg), ("mrr", &measures.mrr), ("recall", &measures.recall)];
    let at_cutoffs = lists.into_iter().flat_map(|(name, values)| {
        cutoffs.iter().zip(values).map(move |(cutoff, value)| (format!("{name}_{cutoff}"), *value))
    });
    at_cutoffs.chain([("map".to_owned(), measures.map)]).collect()
}

fn text(report: &Report, mean: &Measures, cutoffs: &[usize]) -> String {
    let mut text = format!("{:<8}", "");
    cutoffs.iter().for_each(|cutoff| text += &format!(" {:>8}", format!("@{cutoff}")));
    text.push('\n');
    for (name, values) in [("nDCG", &mean.ndcg), ("MRR", &mean.mrr), ("recall", &mean.recall)] {
        text += &format!("{name:<8}");
        values.iter().for_each(|value| text += &format!(" {value:>8.4}"));
        text.push('\n');
    }
    text + &format!(
        "{:<8} {:>8.4}\n{} queries, {} documents, {} pooling, {:.1} s\n",
        "MAP", report.measures["map"], report.n_queries, report.n_documents, report.pooling, report.seconds
    )
}
