// Package journal contains the gateway's journal. The journal records the decision on each call before the call is
// sent, and later the outcome of the call. The package contains the record type and file format for readers, and the
// writer for the gateway.
//
// A journal is a directory of append-only JSON Lines files with one record per line. There are two chains of records.
// The chain of calls contains claims, intents, outcomes and settlements. The journal writes a claim before an approved
// call is claimed, an intent before a call is sent, and an outcome when the result of the call is known. It writes a
// settlement when the approval service and the limiter know the outcome of an approved call. The chain of refusals
// contains refusals, counts of messages that are allowed without a policy rule, and counts of requests that were
// refused before authentication. Each chain has its own segments, `calls-<first seq>.jsonl` or `refusals-<first
// seq>.jsonl`, and its own retention. Therefore refusals never displace calls.
//
// Every record contains the SHA-256 digest of the previous line of its chain, even if that line is in an earlier
// segment. Therefore [Verify] detects a record that was changed, removed or moved, whether or not the journal is open.
//
// A chain alone does not show whether records at its end or its beginning are missing. Therefore the journal signs a
// [Head] each second. The head contains the ends of both chains. The signing key is stored in another directory. Before
// retention removes segments, the journal writes a record that names these segments.
//
// Each record is written with write(2) before the method that records it returns, so it survives a crash of the
// process. With [SyncAlways] the record is also synced, together with other records, so it survives a power failure.
// The intent of an approved call, and all records before it, are always synced. While a chain can't be written, intents
// are refused. When the chain can be written again, the journal recovers automatically.
package journal
