//! Turns panics of libraries into errors.

use std::{
    any::Any,
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook},
    sync::Once,
};

thread_local! {
    /// Whether a panic of this thread is caught by [`caught`], so that nothing is printed.
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Calls a library that may panic on unexpected input. The panic message is returned, not printed. A panic must not
/// leave anything that `run` uses half changed.
///
/// # Errors
/// The message, if `run` panicked.
pub fn caught<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = take_hook();
        set_hook(Box::new(move |info| {
            if !IS_CAUGHT.get() {
                print(info);
            }
        }));
    });
    let is_within = IS_CAUGHT.replace(true);
    let result = catch_unwind(AssertUnwindSafe(run));
    IS_CAUGHT.set(is_within);
    result.map_err(|panic| message(&*panic))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("it panics").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_of_a_library_is_returned_as_its_message() {
        let caught = caught(|| -> u8 { unreachable!("number {}", 5) });
        assert!(caught.is_err_and(|message| message.contains("number 5")));
    }
}
