package jsonrpc

import (
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
)

// text returns the string at span with escapes resolved. It returns "" if the value is absent, and an error if the
// value is not a string or is longer than limit bytes.
func (p *parser) text(span Span, limit int, detail string) (string, error) {
	if !span.Present() {
		return "", nil
	}
	b, ok := p.decode(span)
	if !ok || len(b) > limit {
		return "", p.paramFault(span, detail)
	}
	return string(b), nil
}

// version returns the protocol revision at span. It returns "" if the value is absent.
func (p *parser) version(span Span) (string, error) {
	// For known revisions, no new string is allocated.
	switch string(span.Of(p.raw)) {
	case `"2026-07-28"`:
		return "2026-07-28", nil
	case `"2025-11-25"`:
		return "2025-11-25", nil
	case `"2025-06-18"`:
		return "2025-06-18", nil
	case `"2025-03-26"`:
		return "2025-03-26", nil
	}
	return p.text(span, maxVersion, "the protocol version is not a short string")
}

func (p *parser) idOrAbsent(span Span) (Span, error) {
	if span.Present() && !isID(&p.scanner, span) {
		return Span{}, p.fail(commonv1.Code_CODE_ID_INVALID, span.Start, "this is neither a short string nor a safe integer")
	}
	return span, nil
}

func (p *parser) objectOrAbsent(span Span) (Span, error) {
	if span.Present() && !p.isObject(span) {
		return Span{}, p.paramFault(span, "a value that must be an object is not one")
	}
	return span, nil
}

func (s *scanner) isObject(span Span) bool { return span.Present() && s.raw[span.Start] == '{' }

func (s *scanner) isNull(span Span) bool { return span.Present() && s.raw[span.Start] == 'n' }

func (s *scanner) envelopeFault(at Span, detail string) error {
	return s.fail(commonv1.Code_CODE_JSONRPC_INVALID, at.Start, detail)
}

func (s *scanner) paramFault(at Span, detail string) error {
	return s.fail(commonv1.Code_CODE_PARAMS_INVALID, at.Start, detail)
}

// inGrammar reports whether name matches ^[A-Za-z0-9_./-]{1,128}$, the grammar of tool names. If dollar is true, name
// may also contain dollar signs, as method names may.
func inGrammar(name []byte, dollar bool) bool {
	if len(name) == 0 || len(name) > maxName {
		return false
	}
	for _, c := range name {
		switch {
		case 'a' <= c|0x20 && c|0x20 <= 'z', isDigit(c), c == '_', c == '.', c == '/', c == '-':
		case c == '$' && dollar:
		default:
			return false
		}
	}
	return true
}

// internMethod returns name as a string. For frequent methods it allocates no memory.
func internMethod(name []byte) string {
	switch string(name) {
	case "tools/call":
		return "tools/call"
	case "tools/list":
		return "tools/list"
	case "ping":
		return "ping"
	case "initialize":
		return "initialize"
	case "server/discover":
		return "server/discover"
	case "resources/read":
		return "resources/read"
	case "notifications/initialized":
		return "notifications/initialized"
	case "notifications/cancelled":
		return "notifications/cancelled"
	case "notifications/progress":
		return "notifications/progress"
	default:
		return string(name)
	}
}

// IsToolName reports whether name is a valid tool name, so that a tool with this name can be called.
func IsToolName(name string) bool { return inGrammar([]byte(name), false) }
