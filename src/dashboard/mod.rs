//! The party local viewer: HTTP on the Unix socket that the command line speaks to.
