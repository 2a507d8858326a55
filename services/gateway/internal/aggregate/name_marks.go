package aggregate

import (
	"bytes"
	"regexp"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
)

// The server's name must be added to the id or the logger in these notifications.
const (
	elicitationComplete = "notifications/elicitation/complete"
	logMessage          = "notifications/message"
)

// lineBreaks matches every sequence of characters that a program may treat as a line break (Unicode Standard, section
// 5.8).
var lineBreaks = regexp.MustCompile(`\r\n|[\n\v\f\r\x{85}\x{2028}\x{2029}]`)

// prefixLines adds a prefix to each line of a text. Without it, a line could look as if another server had sent it.
func prefixLines(prefix, text string) string {
	return prefix + lineBreaks.ReplaceAllString(text, "\n"+prefix)
}

// CombinedTitle returns the server's name followed by the display name that the server uses, as in `notes: Search`.
func CombinedTitle(server, text string) string { return prefixLines(server+": ", text) }

// questionText adds the server's name to a message that a server shows to the user, as in `notes asks: Your name?`.
// Without the name, the user could not know which server asks.
func questionText(server, text string) string { return prefixLines(server+" asks: ", text) }

// elicitationID returns the combined id of an elicitation that asks the user to open a URL. The combined id contains
// the server's name, because two servers might use the same id.
func elicitationID(server, id string) string { return server + ":" + id }

// questionPlaces returns the positions of the names in the params of a server's request to the client (MCP 2025-11-25,
// Elicitation and Sampling).
func questionPlaces(path string) []namePlace {
	return []namePlace{
		placeAt(path+"/message", questionText),
		{path: strings.Split(path+"/requestedSchema", "/"), form: true},
		placeAt(path+"/elicitationId", elicitationID),
		// A client would otherwise include the context of all servers, because it knows only one URL for all of them.
		placeAt(path+"/includeContext", func(_, _ string) string { return "none" }),
	}
}

// CombineTitles returns the edits that add the server's name to the titles in a tool's definition, which is the given
// span of raw.
func CombineTitles(server string, raw []byte, definition jsonrpc.Span) (out []jsonrpc.Edit, err error) {
	w := nameWalker{found: func(at jsonrpc.Span, text string, p namePlace) error {
		at.Start, at.End = at.Start+definition.Start, at.End+definition.Start
		out = append(out, ReplaceText(at, p.combine(server, text)))
		return nil
	}}
	err = w.walk(definition.Of(raw), []namePlace{placeAt("title", CombinedTitle), placeAt("annotations/title", CombinedTitle)})
	return out, err
}

// setLogger returns the edits that set the logger of a log message to the server's name. If the server has named a
// logger, that name follows the server's name (MCP 2025-11-25, Logging).
func setLogger(server string, raw []byte) (out []jsonrpc.Edit, err error) {
	// Duplicate keys need no check, because package jsonrpc has already refused messages that contain them.
	dec := jsontext.NewDecoder(bytes.NewBuffer(raw), jsontext.AllowDuplicateNames(true))
	err = eachMember(dec, func(key string) error {
		if key != "params" || dec.PeekKind() != '{' {
			return dec.SkipValue()
		}
		comma := ""
		err := eachMember(dec, func(key string) error {
			comma = ","
			if key != "logger" {
				return dec.SkipValue()
			}
			value, err := dec.ReadValue()
			if err != nil {
				return err
			}
			text := server
			if own, err := jsontext.AppendUnquote(nil, value); err == nil {
				text = CombinedTitle(server, string(own))
			}
			end := int(dec.InputOffset())
			out = append(out, ReplaceText(jsonrpc.Span{Start: end - len(value), End: end}, text))
			return nil
		})
		if end := int(dec.InputOffset()) - 1; err == nil && len(out) == 0 {
			out = append(out, jsonrpc.Edit{Span: jsonrpc.Span{Start: end, End: end}, With: append([]byte(comma+`"logger":`), quoteJSON(server)...)})
		}
		return err
	})
	if err == nil && len(out) == 0 {
		err = ErrNoServer
	}
	return out, err
}

// eachMember reads an object and calls a function with the key of each member. This function must read the member's
// value.
func eachMember(dec *jsontext.Decoder, read func(key string) error) error {
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	for dec.PeekKind() != '}' {
		token, err := dec.ReadToken()
		if err != nil {
			return err
		}
		if err := read(token.String()); err != nil {
			return err
		}
	}
	_, err := dec.ReadToken()
	return err
}
