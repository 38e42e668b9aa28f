//! Malformed input from servers, Sentinels and users. Such input is shown as plain text and without
//! secrets. One of several Sentinels alone cannot redirect a client.

mod doctor;
mod echo;
mod events;
mod names;
