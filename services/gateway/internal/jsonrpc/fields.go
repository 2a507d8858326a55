package jsonrpc

import (
	"unicode/utf8"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/internal/mcpmethod"
)

// These are prefixes of keys in _meta objects.
const (
	// gatewayPrefix is the prefix of the keys that are exchanged only between the gateway and its clients.
	gatewayPrefix = "dev.sluice/"
	// protocolPrefix is the prefix of the keys that the protocol defines.
	protocolPrefix = "io.modelcontextprotocol/"
)

// withoutSessions is the revision in which resources/subscribe and resources/unsubscribe no longer exist. In this
// revision, requests with these methods need no URI, because the methods are unknown.
const withoutSessions = "2026-07-28"

// These tables contain protocol fields. The key of each entry is the field in the form that [Fold] returns. If a
// message's key has the same folded form as one of these fields, the key must be equal to that field, because a parser
// that ignores case would mistake any other spelling for the field.
var (
	envelopeFields = foldTable("jsonrpc", "id", "method", "params", "result", "error")

	// paramsFields contains the params fields of all methods. In a message, the method may come after the params, so it
	// is not known while the params are read.
	paramsFields = foldTable("_meta", "name", "arguments", "uri", "cursor",
		"protocolVersion", "capabilities", "clientInfo", "requestId", "reason",
		"progressToken", "progress", "total", "message", "level", "logger", "data",
		"ref", "argument", "context", "task", "taskId", "status", "ttl",
		"inputResponses", "requestState", "notifications", "elicitationId")

	metaFields = foldTable("progressToken", "traceparent", "tracestate", "baggage",
		protocolPrefix+"protocolVersion", protocolPrefix+"clientCapabilities",
		protocolPrefix+"clientInfo", protocolPrefix+"logLevel",
		protocolPrefix+"related-task", protocolPrefix+"subscriptionId", protocolPrefix+"serverInfo",
		gatewayPrefix+"run", gatewayPrefix+"approval")

	// refFields are the fields of a completion's reference (MCP 2025-11-25, Completion).
	refFields = foldTable("type", "name", "uri")

	inputFields = foldTable("method", "params")

	resultFields = foldTable("_meta", "content", "structuredContent", "isError",
		"tools", "nextCursor", "ttlMs", "cacheScope", "resultType", "protocolVersion",
		"capabilities", "serverInfo", "supportedVersions", "inputRequests", "requestState")

	errorFields = foldTable("code", "message", "data")

	toolFields = foldTable("name")

	// methods contains the methods of all revisions. A server that ignores case would mistake another spelling for one
	// of these methods, although other policy rules apply to that spelling.
	methods = foldTable(mcpmethod.All()...)
)

func foldTable(fields ...string) map[string]string {
	table := make(map[string]string, len(fields))
	for _, field := range fields {
		table[string(fold(nil, []byte(field)))] = field
	}
	return table
}

// isVariant reports whether key folds to a field of the table but is not equal to that field.
func isVariant(table map[string]string, key []byte) bool {
	var buf [128]byte
	if len(key) > len(buf) {
		return false // no spelling of a field is that long
	}
	field, known := table[string(fold(buf[:0], key))]
	return known && field != string(key)
}

// fold appends key to dst. It replaces each character that a parser may mistake for an ASCII letter with that letter in
// lower case. According to Unicode's simple case folding, these characters are the capital letters, the long s and the
// Kelvin sign. fold also replaces the Turkish dotted I and dotless i, because Java's equalsIgnoreCase treats them as an
// i.
func fold(dst, key []byte) []byte {
	for i := 0; i < len(key); i++ {
		c := key[i]
		switch {
		case 'A' <= c && c <= 'Z':
			c |= 0x20
		case c >= utf8.RuneSelf:
			r, size := utf8.DecodeRune(key[i:])
			i += size - 1
			switch r {
			case '\u017f': // long s
				c = 's'
			case '\u212a': // Kelvin sign
				c = 'k'
			case '\u0130', '\u0131': // I with a dot, i without a dot
				c = 'i'
			default:
				dst = utf8.AppendRune(dst, r)
				continue
			}
		}
		dst = append(dst, c)
	}
	return dst
}

// Fold returns a copy of key in which each character that a parser may mistake for an ASCII letter is replaced with
// that letter in lower case. A parser that ignores case treats two keys as equal if their folded forms are equal.
func Fold(key string) string { return string(fold(nil, []byte(key))) }

func foldsToPrefix(key []byte, prefix string) bool {
	// A character that folds to a letter is at most three bytes long.
	key = key[:min(len(key), 3*len(prefix))]
	var buf [3 * len(protocolPrefix)]byte
	folded := fold(buf[:0], key)
	return len(folded) >= len(prefix) && string(folded[:len(prefix)]) == prefix
}

// isMeta reports whether a parser could mistake key for _meta.
func isMeta(key []byte) bool {
	if len(key) != len("_meta") || key[0] != '_' { // no multi-byte character folds to a letter of _meta
		return false
	}
	var buf [len("_meta")]byte
	return string(fold(buf[:0], key)) == "_meta"
}

// refuseVariant refuses the current key if a parser could mistake it for a field in the table.
func (s *scanner) refuseVariant(table map[string]string, f *frame) error {
	if isVariant(table, f.key) {
		return s.variant(f)
	}
	return nil
}

func (s *scanner) variant(f *frame) error {
	return s.fail(commonv1.Code_CODE_FIELD_CASE_VARIANT, f.start,
		"a key differs from a protocol field in case only")
}
