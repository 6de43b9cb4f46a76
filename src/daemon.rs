//! Start order, wiring, supervision, stop order.
