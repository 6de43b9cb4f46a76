//! Stable sorting with one compiled algorithm for all types, and maps that are filled without it.
//!
//! The sorts of the standard library are compiled for each type again, about 5 KB each, and
//! collecting into a `LiteMap`, `BTreeMap` or `BTreeSet` sorts first: 335 KB of a release for
//! x86-64, a twentieth of its code. What is sorted here is short, or seldom sorted.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
};

use litemap::LiteMap;
use serde_json::Value;

/// Sorted maps and sets: an item that is there already is replaced.
pub trait Sorted<T>: Default {
    /// Adds one item at its place.
    fn add(&mut self, item: T);
}

impl<K: Ord, V> Sorted<(K, V)> for LiteMap<K, V> {
    fn add(&mut self, (key, value): (K, V)) {
        self.insert(key, value);
    }
}

impl<K: Ord, V> Sorted<(K, V)> for BTreeMap<K, V> {
    fn add(&mut self, (key, value): (K, V)) {
        self.insert(key, value);
    }
}

impl Sorted<(String, Value)> for serde_json::Map<String, Value> {
    fn add(&mut self, (key, value): (String, Value)) {
        self.insert(key, value);
    }
}

impl<T: Ord> Sorted<T> for BTreeSet<T> {
    fn add(&mut self, item: T) {
        self.insert(item);
    }
}

/// Collecting into sorted maps and sets.
pub trait GatherExt: Iterator + Sized {
    /// Adds all items to an empty collection, one by one.
    fn gather<C: Sorted<Self::Item>>(self) -> C {
        let mut all = C::default();
        self.for_each(|item| all.add(item));
        all
    }
}

impl<I: Iterator> GatherExt for I {}

/// Sorting of slices.
pub trait OrderExt<T> {
    /// Sorts in ascending order.
    fn order(&mut self)
    where
        T: Ord;

    /// Sorts by `compare`; equal items keep their order.
    fn order_by(&mut self, compare: impl FnMut(&T, &T) -> Ordering);

    /// Sorts by a key of each item, which is computed at each comparison.
    fn order_by_key<K: Ord>(&mut self, key: impl FnMut(&T) -> K);
}

impl<T> OrderExt<T> for [T] {
    fn order(&mut self)
    where
        T: Ord,
    {
        self.order_by(T::cmp);
    }

    fn order_by(&mut self, mut compare: impl FnMut(&T, &T) -> Ordering) {
        let mut places = |one: usize, other: usize| match (self.get(one), self.get(other)) {
            (Some(one), Some(other)) => compare(one, other),
            (None, _) | (_, None) => Ordering::Equal,
        };
        for (one, other) in swaps(self.len(), &mut places) {
            self.swap(one, other);
        }
    }

    fn order_by_key<K: Ord>(&mut self, mut key: impl FnMut(&T) -> K) {
        self.order_by(|one, other| key(one).cmp(&key(other)));
    }
}

/// Swaps that bring `count` items into order, by a comparison of their places.
fn swaps(count: usize, compare: &mut dyn FnMut(usize, usize) -> Ordering) -> Vec<(usize, usize)> {
    let mut from: Vec<usize> = (0..count).collect();
    from.sort_by(|one, other| compare(*one, *other));
    let mut swaps = Vec::new();
    for start in 0..count {
        // Each place takes the item that belongs there from where it is now, until the circle of
        // such moves is closed.
        let mut place = start;
        while let Some(next) = from.get_mut(place) {
            let next = std::mem::replace(next, place);
            if next == start || next == place {
                break;
            }
            swaps.push((place, next));
            place = next;
        }
    }
    swaps
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_order_is_that_of_the_standard_library(items: Vec<(u8, u16)>) {
            let (mut ours, mut theirs) = (items.clone(), items.clone());
            ours.order();
            theirs.sort_unstable();
            prop_assert_eq!(&ours, &theirs);

            let (mut ours, mut theirs) = (items.clone(), items.clone());
            ours.order_by_key(|item| std::cmp::Reverse(item.0));
            theirs.sort_by_key(|item| std::cmp::Reverse(item.0));
            prop_assert_eq!(&ours, &theirs);

            let (mut ours, mut theirs) = (items.clone(), items);
            ours.order_by(|one, other| one.1.cmp(&other.1));
            theirs.sort_by_key(|item| item.1);
            prop_assert_eq!(ours, theirs);
        }
    }

    #[test]
    fn ten_thousand_items_need_fewer_swaps_than_items() {
        let mut backwards: Vec<usize> = (0..10_000).rev().collect();
        let all = backwards.clone();
        let made = swaps(all.len(), &mut |one, other| {
            all.get(one).cmp(&all.get(other))
        });
        assert!(made.len() < all.len(), "{}", made.len());
        backwards.order();
        assert!(backwards.is_sorted());
    }
}
