//! Malformed input from servers, Sentinels and users. It is shown as plain text and without
//! secrets. One of several Sentinels cannot redirect a client.

mod doctor;
mod echo;
mod events;
mod names;
