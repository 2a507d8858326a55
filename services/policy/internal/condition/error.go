package condition

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"cel.dev/cel-go/common"
)

// TextError is the reason why a text is not a valid condition.
type TextError struct {
	// Message describes the problem in one line, with its position in the text.
	Message string
	// Suggestion says how to correct the problem. It may be empty.
	Suggestion string
}

// Error implements error.
func (p *TextError) Error() string { return strings.TrimSuffix(p.Message+"; "+p.Suggestion, "; ") }

// suggestions contains suggestions for CEL's error messages. A suggestion applies to all messages that contain part.
var suggestions = []struct{ part, suggestion string }{
	{"'_==_' applied to '(sluice.Decimal", "make both sides decimals, for example decimal(100)"},
	{"sluice.Decimal)'", "make both sides decimals, for example decimal(100)"},
	{"(sluice.Decimal, ", "make both sides decimals, for example decimal(100)"},
	{"undeclared reference to '_+_'", "conditions compare and don't calculate"},
	{"undeclared reference to '_-_'", "conditions compare and don't calculate"},
	{"undeclared reference to '_*_'", "conditions compare and don't calculate"},
	{"undeclared reference to '_/_'", "conditions compare and don't calculate"},
	{"undeclared reference to '_%_'", "conditions compare and don't calculate"},
	{"undeclared reference to 'path", "there are path.within, path.base and path.ext"},
	{"undeclared reference to 'url", "there are url.scheme, url.host, url.port, url.path and url.under"},
	{"undeclared reference to 'ip", "there is ip.in(x, \"10.0.0.0/8\")"},
	{"undeclared reference to 'email", "there is email.domain"},
	{"undeclared reference to 'not'", "write ! for not"},
	{"undeclared reference to 'caller", "there are caller.subject, caller.agent, caller.tenant, caller.groups, caller.chain, caller.issuer, caller.client and caller.scopes"},
	{"undeclared reference to 'call", "there are call.server, call.tool, call.method and call.uri"},
	{"undeclared reference to 'tool", "there are tool.category, tool.risk, tool.tags and tool.known"},
	{"undeclared reference to 'principal", "the caller is in caller, for example caller.subject"},
	{"undeclared reference to 'arguments", "arguments are in args, for example args.amount"},
	{"token recognition error at: '= '", "write == to compare"},
	{"mismatched input 'and'", "write &&"},
	{"mismatched input 'or'", "write ||"},
}

// problemAt returns the error for a location in a text. If the suggestion is empty, problemAt looks for one in
// [suggestions], or for one that depends on the text at the location.
func problemAt(at common.Location, text, message, suggestion string) *TextError {
	message, _, _ = strings.Cut(strings.ReplaceAll(decodeIPIn(message), " (in container '')", ""), "\n")
	p := &TextError{Message: message, Suggestion: suggestion}
	for _, s := range suggestions {
		if p.Suggestion == "" && strings.Contains(message, s.part) {
			p.Suggestion = s.suggestion
		}
	}
	before, behind := around(at, text)
	switch {
	case p.Suggestion != "":
	case strings.Contains(message, "mismatched input") && notBefore.MatchString(before):
		p.Suggestion = "write ! for not"
	case strings.Contains(message, "undeclared reference to") && strings.HasPrefix(behind, "("):
		p.Suggestion = "conditions have no such function"
	case strings.Contains(message, "undeclared reference to"):
		p.Suggestion = "arguments are in args, for example args.amount"
	}
	switch {
	case at == nil || at.Line() < 1 || at.Column() < 0:
	case strings.Contains(strings.TrimRight(text, "\n"), "\n"):
		p.Message = fmt.Sprintf("line %d, character %d: %s", at.Line(), at.Column()+1, message)
	default:
		p.Message = fmt.Sprintf("character %d: %s", at.Column()+1, message)
	}
	return p
}

// notBefore matches a text that ends with the word "not".
var notBefore = regexp.MustCompile(`\bnot\s+$`)

// around returns the parts of a line before and after a location. If the location is invalid, both are empty.
func around(at common.Location, text string) (before, behind string) {
	if at == nil || at.Line() < 1 || at.Column() < 0 {
		return "", ""
	}
	line := []rune(slices.Collect(strings.SplitSeq(text, "\n"))[min(at.Line()-1, strings.Count(text, "\n"))])
	column := min(at.Column(), len(line))
	return string(line[:column]), string(line[column:])
}
