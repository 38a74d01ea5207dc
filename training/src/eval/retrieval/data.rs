//! Queries, documents and judgments in the layout of [BEIR](https://github.com/beir-cellar/beir): `corpus.jsonl`, `queries.jsonl`
//! and `qrels/SPLIT.tsv`.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

use anyhow::{Context, Result, bail, ensure};

use crate::{data::corpus::read_to_string, eval::jsonl::read_json_records};

/// A query or a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    /// Its id.
    pub id: String,
    /// The text to embed.
    pub text: String,
}

/// How relevant documents are for one query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judgments {
    /// By the document's place in the corpus.
    pub of_documents: HashMap<usize, i64>,
    /// Judgments of documents that are not in the corpus, which no ranking finds.
    pub unfound: Vec<i64>,
}

/// A data set for search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetrievalData {
    /// The documents, title and text joined by a space.
    pub documents: Vec<Text>,
    /// The queries that are judged.
    pub queries: Vec<Text>,
    /// Their judgments.
    pub judgments: Vec<Judgments>,
    /// Notes about the data.
    pub notes: Vec<String>,
}

impl RetrievalData {
    /// Reads the folder `dir` with the judgments of `split`.
    ///
    /// # Errors
    /// A file cannot be read or is empty, or a line has another form, a duplicate id, or an unknown query; the message
    /// names the line.
    pub fn read(dir: &Path, split: &str) -> Result<RetrievalData> {
        let (documents, places) = texts(&dir.join("corpus.jsonl"), true)?;
        let (all, numbers) = texts(&dir.join("queries.jsonl"), false)?;
        let qrels = dir.join("qrels").join(format!("{split}.tsv"));
        let mut judged: BTreeMap<usize, Judgments> = BTreeMap::new();
        let mut seen = HashMap::new();
        let (mut n_unfound, mut first_unfound) = (0, None);
        let text = read_to_string(&qrels)?;
        for (line, fields) in text.lines().enumerate().skip(1).filter(|(_, line)| !line.trim().is_empty()) {
            let place = || format!("`{}`, line {}", qrels.display(), line + 1);
            let fields: Vec<&str> = fields.trim_end_matches('\r').split('\t').collect();
            let [query, document, score] = fields[..] else {
                bail!(
                    "{}: it has {} columns, not 3\nhint: they are the ids of a query and of a document, and a score, with a row of \
                       names at the head",
                    place(),
                    fields.len()
                );
            };
            let score: i64 = score.trim().parse().ok().with_context(|| {
                format!("{}: the score must be a whole number, got `{score}`\nhint: correct this line", place())
            })?;
            let &number = numbers.get(query).with_context(|| {
                format!(
                    "{}: there is no query `{query}` in `queries.jsonl`\nhint: add it, or remove this line",
                    place()
                )
            })?;
            if let Some(other) = seen.insert((query, document), line + 1) {
                bail!(
                    "{}: the query `{query}` and the document `{document}` are in line {other} already\nhint: remove one",
                    place()
                );
            }
            let judgments = judged.entry(number).or_default();
            match places.get(document) {
                Some(&document) => {
                    judgments.of_documents.insert(document, score);
                }
                None => {
                    n_unfound += 1;
                    first_unfound.get_or_insert_with(|| format!("`{document}` ({})", place()));
                    judgments.unfound.push(score);
                }
            }
        }
        ensure!(
            !judged.is_empty(),
            "`{}` has no judgments\nhint: it has a row of names, then a line for each",
            qrels.display()
        );
        let mut notes = Vec::new();
        if let Some(first) = first_unfound {
            notes.push(format!(
                "warning: {n_unfound} judged documents are not in the corpus and cannot be found, such as {first}"
            ));
        }
        let has_relevant =
            |judgments: &Judgments| judgments.of_documents.values().chain(&judgments.unfound).any(|score| *score > 0);
        let n_without = judged.values().filter(|judgments| !has_relevant(judgments)).count();
        if n_without > 0 {
            notes.push(format!("warning: {n_without} queries have no relevant document; their measures are 0"));
        }
        let queries = judged.keys().map(|&number| all[number].clone()).collect();
        Ok(RetrievalData { documents, queries, judgments: judged.into_values().collect(), notes })
    }

    /// For each query the document with the query's own id, which does not count.
    pub fn own_documents(&self) -> Vec<Option<usize>> {
        let places: HashMap<&str, usize> =
            self.documents.iter().enumerate().map(|(at, text)| (&*text.id, at)).collect();
        self.queries.iter().map(|query| places.get(&*query.id).copied()).collect()
    }
}

/// The texts of a file, and their places by id.
fn texts(path: &Path, has_titles: bool) -> Result<(Vec<Text>, HashMap<String, usize>)> {
    let (mut texts, mut places) = (Vec::new(), HashMap::new());
    for record in read_json_records(path)? {
        let (id, text) = (record.label("_id")?, record.text("text")?);
        let title = if has_titles && record.has("title") { record.text("title")? } else { "" };
        let text = format!("{title} {text}").trim().to_owned();
        if let Some(other) = places.insert(id.clone(), texts.len()) {
            bail!("{}: the `_id` `{id}` is that of text {} already\nhint: ids must differ", record.place(), other + 1);
        }
        texts.push(Text { id, text });
    }
    Ok((texts, places))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use std::fs;

    use super::*;

    fn read(corpus: &str, queries: &str, qrels: &str) -> Result<RetrievalData, String> {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("qrels")).unwrap();
        for (name, text) in [("corpus.jsonl", corpus), ("queries.jsonl", queries), ("qrels/test.tsv", qrels)] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        RetrievalData::read(dir.path(), "test").map_err(|error| format!("{error:#}"))
    }

    const CORPUS: &str = "{\"_id\": \"d1\", \"title\": \"A\", \"text\": \"b\"}\n{\"_id\": \"q1\", \"text\": \"c\"}\n";
    const QUERIES: &str = "{\"_id\": \"q0\", \"text\": \"x\"}\n{\"_id\": \"q1\", \"text\": \"y\"}\n";

    #[test]
    fn beir_folder_is_read_and_wrong_lines_are_named() {
        let data = read(CORPUS, QUERIES, "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\tgone\t1\n").unwrap();
        assert_eq!((&*data.documents[0].text, &*data.documents[1].text), ("A b", "c"));
        assert_eq!(data.queries, [Text { id: "q1".into(), text: "y".into() }]);
        assert_eq!((data.judgments[0].of_documents[&0], &*data.judgments[0].unfound), (2, &[1][..]));
        assert_eq!(data.own_documents(), [Some(1)]);
        assert!(data.notes[0].contains("1 judged documents are not in the corpus") && data.notes[0].contains("line 3"));
        for (qrels, message) in [
            ("head\n", "has no judgments"),
            ("head\nq1\td1\n", "line 2: it has 2 columns"),
            ("head\nq1\td1\thigh\n", "line 2: the score must be a whole number, got `high`"),
            ("head\nq9\td1\t1\n", "line 2: there is no query `q9`"),
            ("head\nq1\td1\t1\nq1\td1\t0\n", "line 3: the query `q1` and the document `d1` are in line 2 already"),
        ] {
            let error = read(CORPUS, QUERIES, qrels).unwrap_err();
            assert!(error.contains(message), "{message}: {error}");
        }
        let error = read(&CORPUS.replace("q1", "d1"), QUERIES, "head\nq1\td1\t1\n").unwrap_err();
        assert!(error.contains("line 2: the `_id` `d1` is that of text 1 already"), "{error}");
        let without = read(CORPUS, QUERIES, "head\nq1\td1\t0\n").unwrap();
        assert!(without.notes[0].contains("1 queries have no relevant document"), "{:?}", without.notes);
    }
}
