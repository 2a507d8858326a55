// Package journal is the gateway's journal: it records the decision on each call before the call is sent, and the
// call's outcome. It contains the record and the file format, for readers, and the writer, for the gateway.
//
// A journal is a folder of append-only JSON Lines files, one record per line. There are two chains: calls (intents
// and outcomes) and refusals (refusals, and counts of requests that were refused before authentication). Each has its
// own segments, `calls-<first seq>.jsonl`, and its own retention, so that refusals never displace calls. Every record
// carries the SHA-256 of the line before it, across segments, so that a changed, dropped or moved record is noticed;
// [Verify] finds it offline.
//
// A chain alone does not show that its end or its beginning is missing. Each second a [Head] is sealed: it contains
// the ends of both chains and is signed with a key from another folder. A record names segments before retention
// removes them.
//
// A record is written with write(2) before the call that records it returns, so it survives a killed process. With
// [SyncAlways] it is also synced, in groups, so it survives a loss of power. The intent of an approved call and all
// records before it are always synced. While a chain can't be written, intents are refused; the journal recovers
// without help.
package journal
