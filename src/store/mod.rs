//! The party disk: `state.db`, one thread, typed calls. No SQL outside this room.
