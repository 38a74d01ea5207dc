//! Texts that embedding models want before a text.

use std::collections::BTreeMap;

/// What an embedding model wants before a text, by the use of its vector: `query: `, or an instruction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompts {
    /// By name, such as `query`.
    pub by_name: BTreeMap<String, String>,
    /// The name of the one before texts of which nobody says what their vectors are for.
    pub default_name: Option<String>,
}

/// Names of the prompt before what is searched for, and before what is searched: the first that a model has counts.
const QUERY: [&str; 2] = ["query", "search_query"];
const DOCUMENT: [&str; 4] = ["document", "passage", "corpus", "search_document"];

impl Prompts {
    /// What comes before a text of which nobody says what its vector is for; empty for nothing.
    pub fn usual(&self) -> &str {
        self.default_name.as_ref().and_then(|name| self.by_name.get(name)).map_or("", String::as_str)
    }

    /// What comes before a query; empty for nothing.
    pub fn query(&self) -> &str {
        self.first_of(&QUERY)
    }

    /// What comes before a document; empty for nothing.
    pub fn document(&self) -> &str {
        self.first_of(&DOCUMENT)
    }

    /// What comes before a text for another use, such as `classification`, in upper or lower case; empty for nothing.
    pub fn other(&self, name: &str) -> &str {
        let mut prompts = self.by_name.iter();
        prompts.find(|(own, _)| own.eq_ignore_ascii_case(name)).map_or("", |(_, prompt)| prompt)
    }

    /// Files often have empty prompts under the usual names, beside the one that counts.
    fn first_of(&self, names: &[&str]) -> &str {
        let prompts = names.iter().filter_map(|name| self.by_name.get(*name));
        prompts.map(String::as_str).find(|prompt| !prompt.is_empty()).unwrap_or_default()
    }
}
