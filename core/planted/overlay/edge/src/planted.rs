//! Known bugs of the edge, each behind a switch, to see that the tests find them (`docs/testing.md`).

#[macro_use]
#[path = "../../switch.rs"]
mod switch;

planted! {
    /// An announced gap is followed by the next one at once.
    GapsWithoutPause,
    /// A frame of one encoding is given to a session of the other.
    FrameOfOtherEncoding,
    /// A pong counts for all messages so far, also for those behind its ping.
    PongForLaterMessage,
    /// A subscription that was left is still answered as if it were there.
    UnsubscribeStillDelivers,
    /// A session goes on with the token of another user.
    TokenOfAnotherUser,
    /// Data that is no JSON is put into a JSON frame as it is.
    JsonUnchecked,
    /// A control frame between two fragments drops the first one.
    FragmentForgotten,
}
