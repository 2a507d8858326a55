// Package journal contains the gateway's journal. The journal records the decision on each call before the call is
// sent, and then the outcome of the call. The package contains the record and the file format for readers, and the
// writer for the gateway.
//
// A journal is a directory of append-only JSON Lines files with one record per line. There are two chains of records.
// The chain of calls contains intents and outcomes. The chain of refusals contains refusals, and counts of requests
// that were refused before authentication. Each chain has separate segments, `calls-<first seq>.jsonl` or
// `refusals-<first seq>.jsonl`, and a separate retention. Therefore refusals never displace calls.
//
// Every record contains the SHA-256 digest of the previous line of its chain, also across segments. Therefore [Verify]
// detects a record that was changed, removed or moved, while the journal is open or offline.
//
// A chain alone does not show whether records at its end or its beginning are missing. Therefore the journal signs a
// [Head] each second. The head contains the ends of both chains. The key that signs it is stored in another directory.
// Before retention removes segments, a record names these segments.
//
// Each record is written with write(2) before the method that records it returns, so it survives the end of the
// process. With [SyncAlways] the record is also synced, together with other records, so it survives a loss of power.
// The intent of an approved call, and all records before it, are always synced. While a chain can't be written, intents
// are refused. The journal recovers automatically when it can be written again.
package journal
