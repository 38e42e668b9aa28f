//! Whatever servers and Sentinels send, and whatever names people give: what is shown is plain,
//! holds no secret, and one of several does not say where to go.

mod doctor;
mod echo;
mod events;
mod names;
