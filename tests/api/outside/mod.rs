//! Malformed input from servers, Sentinels and users: output shows it as plain text and without
//! secrets, and one of several Sentinels cannot redirect a client.

mod doctor;
mod echo;
mod events;
mod names;
