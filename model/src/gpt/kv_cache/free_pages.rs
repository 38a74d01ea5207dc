//! Free pages, and the choice of the page that a sequence gets.

use std::collections::BTreeSet;

/// Number of consecutive pages reserved for one sequence, if as many are free: attention reads consecutive pages faster
/// than scattered ones.
const RUN: usize = 16;

/// A set of pages.
#[derive(Debug)]
pub(super) struct FreePages {
    pages: BTreeSet<usize>,
    /// How many pages of each run, `RUN` pages from a multiple of it on, are free.
    n_free_in_run: Vec<usize>,
    /// The runs whose pages are all free.
    runs: BTreeSet<usize>,
}

impl FreePages {
    /// All of `n_pages` pages, free.
    pub(super) fn all(n_pages: usize) -> Self {
        let mut free =
            Self { pages: BTreeSet::new(), n_free_in_run: vec![0; n_pages.div_ceil(RUN)], runs: BTreeSet::new() };
        (0..n_pages).for_each(|page| free.insert(page));
        free
    }

    pub(super) fn len(&self) -> usize {
        self.pages.len()
    }

    pub(super) fn insert(&mut self, page: usize) {
        if self.pages.insert(page) {
            let n_free = &mut self.n_free_in_run[page / RUN];
            *n_free += 1;
            if *n_free == RUN {
                self.runs.insert(page / RUN);
            }
        }
    }

    /// Removes a page for a sequence whose last page is `last`: the next page; if that is not free, the first page of a
    /// free run of [`RUN`], into which the sequence can grow; if there is no such run, the first free page.
    pub(super) fn take(&mut self, last: Option<usize>) -> Option<usize> {
        let behind = last.map(|last| last + 1).filter(|page| self.pages.contains(page));
        let page = behind.or_else(|| self.runs.first().map(|run| run * RUN)).or_else(|| self.pages.first().copied())?;
        self.pages.remove(&page);
        self.runs.remove(&(page / RUN));
        self.n_free_in_run[page / RUN] -= 1;
        Some(page)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn free_pages_gives_a_sequence_consecutive_pages_while_available() {
        let mut free = FreePages::all(3 * RUN + 2);
        let mut take = |last| free.take(last);
        // The first sequence takes a run and one page of the next run; the second sequence gets the run after that.
        let first = (0..RUN + 1).fold(None, |last, _| take(last));
        assert_eq!(first, Some(RUN));
        let second = take(None);
        assert_eq!(second, Some(2 * RUN));
        assert_eq!([take(first), take(second)], [Some(RUN + 1), Some(2 * RUN + 1)]);
        // No free run is left, so the first free page is taken.
        assert_eq!(take(None), Some(RUN + 2));
        // No page follows the last one, so the first free page is taken.
        let end = 3 * RUN + 1;
        assert_eq!((take(Some(end - 1)), take(Some(end))), (Some(end), Some(RUN + 3)));
    }

    #[test]
    fn free_pages_hands_out_each_page_once_until_it_is_returned() {
        let mut free = FreePages::all(40);
        let mut taken: Vec<usize> = (0..40).map(|n| free.take((n % 3 == 0).then_some(n)).unwrap()).collect();
        assert_eq!((free.len(), free.take(None), free.take(Some(3))), (0, None, None));
        taken.sort_unstable();
        assert!(taken.into_iter().eq(0..40));
        free.insert(7);
        free.insert(7);
        assert_eq!((free.len(), free.take(None), free.take(None)), (1, Some(7), None));
    }
}
