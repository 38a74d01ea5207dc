//! Code shared by command line programs: starting and reporting errors, progress on stderr, output files, and the
//! options of commands that open a model.

mod model;
mod output;
mod program;
mod status;

pub use self::{
    model::{ModelArgs, OpenModel, model_path, progress_line},
    output::{print_json, unwritable, write_file, write_lines},
    program::{Program, main},
    status::{Status, counted, note_left_out, note_not_text},
};
