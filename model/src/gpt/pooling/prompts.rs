//! The prompts that embedding models expect before a text.

use std::collections::BTreeMap;

/// The prompts of an embedding model, by the use of the vector: `query: `, or an instruction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompts {
    /// Prompts by name, such as `query`.
    pub by_name: BTreeMap<String, String>,
    /// The name of the prompt for texts of unstated use.
    pub default_name: Option<String>,
}

/// Names of the prompts for queries and for documents: the first that a model has is used.
const QUERY: [&str; 2] = ["query", "search_query"];
const DOCUMENT: [&str; 4] = ["document", "passage", "corpus", "search_document"];

impl Prompts {
    /// The prompt for a text of unstated use; empty if there is none.
    pub fn usual(&self) -> &str {
        self.default_name.as_ref().and_then(|name| self.by_name.get(name)).map_or("", String::as_str)
    }

    /// The prompt for a query; empty if there is none.
    pub fn query(&self) -> &str {
        self.first_of(&QUERY)
    }

    /// The prompt for a document; empty if there is none.
    pub fn document(&self) -> &str {
        self.first_of(&DOCUMENT)
    }

    /// The prompt for another use, such as `classification`, in upper or lower case; empty if there is none.
    pub fn other(&self, name: &str) -> &str {
        let mut prompts = self.by_name.iter();
        prompts.find(|(own, _)| own.eq_ignore_ascii_case(name)).map_or("", |(_, prompt)| prompt)
    }

    /// Files often have empty prompts under the usual names besides the real one.
    fn first_of(&self, names: &[&str]) -> &str {
        let prompts = names.iter().filter_map(|name| self.by_name.get(*name));
        prompts.map(String::as_str).find(|prompt| !prompt.is_empty()).unwrap_or_default()
    }
}
