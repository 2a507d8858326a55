// Package journal is the gateway's journal: what was decided on each call, written
// before the call goes out, and what came of it. It has the record and the format of
// the files, for those who read them, and the writer, for the gateway.
//
// It is a folder of JSON Lines files, one record a line, append only. There are two
// chains: calls (intents and outcomes) and refusals (refusals and counts of what was
// refused before identification). Each has its own segments, `calls-<first
// seq>.jsonl`, and its own retention, so that refusals never displace calls. Every
// record carries the SHA-256 of the line before it, across segments, so that a
// changed, dropped or moved record shows; [Verify] finds it offline.
//
// What a chain can't show by itself is a missing end or beginning. Each second a [Head]
// is sealed: how far both chains go, signed with a key that lies elsewhere. What
// retention removes a record names first.
//
// A record is written with write(2) before the call that records it returns, so it
// survives a killed process; with [SyncAlways] it is synced as well, in groups, so it
// survives a loss of power, and so are an approved call's intent and all before it in
// any case. While a chain can't be written, intents are refused; the
// journal goes on by itself once it can.
package journal
