//! Places documents in rows so that few tokens of a row are left over.

use std::collections::BTreeMap;

/// Best-fit decreasing ([Johnson, 1974](https://doi.org/10.1016/S0022-0000(74)80026-7)): from the longest to the
/// shortest, each document goes into the fullest row that has room for it. Returns the numbers of the documents of each
/// row, in ascending order.
///
/// # Panics
/// If a length is 0 or exceeds `row_len`.
pub fn pack(lengths: &[usize], row_len: usize) -> Vec<Vec<u32>> {
    let mut longest_first: Vec<usize> = (0..lengths.len()).collect();
    longest_first.sort_by_key(|&number| (std::cmp::Reverse(lengths[number]), number));
    let mut rows: Vec<Vec<u32>> = Vec::new();
    // Rows by the room that is left in them.
    let mut by_room: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for number in longest_first {
        let length = lengths[number];
        assert!((1..=row_len).contains(&length), "a document of {length} tokens for rows of {row_len}");
        let fullest = by_room.range(length..).next().map(|(&room, _)| room);
        let (room, row) = match fullest.and_then(|room| Some((room, by_room.get_mut(&room)?.pop()?))) {
            Some(found) => found,
            None => {
                rows.push(Vec::new());
                (row_len, rows.len() - 1)
            }
        };
        if by_room.get(&room).is_some_and(Vec::is_empty) {
            by_room.remove(&room);
        }
        rows[row].push(number as u32);
        by_room.entry(room - length).or_default().push(row);
    }
    rows.iter_mut().for_each(|row| row.sort_unstable());
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_document_has_one_place_and_no_row_is_too_long() {
        for row_len in [1, 7, 100] {
            let lengths: Vec<usize> = (0..500).map(|n| 1 + n * 7919 % row_len).collect();
            let rows = pack(&lengths, row_len);
            let mut seen: Vec<u32> = rows.concat();
            seen.sort_unstable();
            assert_eq!(seen, (0..500).collect::<Vec<_>>());
            assert!(rows.iter().all(|row| row.iter().map(|&n| lengths[n as usize]).sum::<usize>() <= row_len));
        }
    }

    #[test]
    fn short_documents_fill_what_long_ones_leave() {
        assert_eq!(pack(&[3, 6, 4, 5, 2], 10), [vec![1, 2], vec![0, 3, 4]]);
        assert_eq!(pack(&[], 10), Vec::<Vec<u32>>::new());
        // The fullest row with room, not the first.
        assert_eq!(pack(&[9, 6, 4], 10), [vec![0], vec![1, 2]]);
    }
}
