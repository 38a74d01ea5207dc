//! Sources of training text, and tokenization. One file per kind of source.

mod conversation;
mod encode;
mod files;
mod hub_dataset;
mod json;
mod open;
mod parquet;
mod piece;
mod pipeline;
mod record;
mod source;
mod split;
mod text;
mod token_file;
mod words;

pub use conversation::{Conversation, ConversationEncoder};
pub(crate) use conversation::{TOOLS, parsed_list, require_tools_written, tools_of};
pub(crate) use encode::ANY_CHARACTER;
pub use encode::Encoder;
pub use files::{FileKind, SourceFile, kind_of, list_files, split_of};
pub use hub_dataset::{Downloaded, HubDataset};
pub use open::{BytesRead, read_to_string};
pub use piece::{Cutting, PIECE_BYTES, Piece, pieces};
pub use pipeline::{FilePiece, ReadReport, read_in_batches};
pub use record::{Record, RecordOptions, read_records};
pub use source::{Files, Origin, Outcome, ReadOptions, SourceSpec, read_documents};
pub use split::{SplitText, split_by_chars};
pub use text::check_separator;
pub use token_file::read_tokens;
pub(crate) use words::GPT4_PATTERN;
pub use words::WordSplit;
