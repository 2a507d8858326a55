package question

import (
	"bytes"
	"net/netip"
	"net/url"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
)

// maxURL and maxID limit the lengths of the URL and the id in a request, in bytes.
const (
	maxURL = 8 << 10
	maxID  = 256
)

// checkElicitation checks a request with the method elicitation/create (MCP 2025-11-25, Elicitation).
func (o Offer) checkElicitation(params map[string]jsontext.Value) *Error {
	if _, ok := text(params, "message"); o.Aggregated && !ok {
		return invalid("the request has no message, so nothing can say which server asks")
	}
	mode := "form"
	if has(params, "mode") {
		mode, _ = text(params, "mode")
	}
	switch mode {
	case "form":
		return o.checkForm(params)
	case "url":
		return o.checkURL(params)
	default:
		return invalid("`mode` is neither form nor url")
	}
}

// checkForm checks a request to show a form to the user. If a client declares elicitation without any options, it
// supports forms.
func (o Offer) checkForm(params map[string]jsontext.Value) *Error {
	offered, declared := o.option(mcp.MethodElicit, "form")
	schema := params["requestedSchema"]
	switch {
	case declared && !offered:
		return denied("the client's capabilities for this server do not include forms (`elicitation.form`)")
	case has(params, "url") || has(params, "elicitationId"):
		return invalid("a form has no `url` and no `elicitationId`")
	case has(params, "requestedSchema") && schema.Kind() != '{':
		return invalid("`requestedSchema` is not an object")
	case o.Aggregated && has(params, "requestedSchema"):
		return checkFormLines(schema)
	}
	return nil
}

// checkURL checks a request to ask the user to open a URL.
func (o Offer) checkURL(params map[string]jsontext.Value) *Error {
	offered, _ := o.option(mcp.MethodElicit, "url")
	if !offered || !hasToolsAndURLs(o.Revision) {
		return denied("the client's capabilities for this server do not include URLs (`elicitation.url`)")
	}
	if has(params, "requestedSchema") {
		return invalid("a request with a URL has no `requestedSchema`")
	}
	if id, is := text(params, "elicitationId"); has(params, "elicitationId") && (!is || id == "" || len(id) > maxID) {
		return invalid("`elicitationId` is not a string of 1 to 256 bytes")
	}
	if at, is := text(params, "url"); !is || !isAllowedURL(at) {
		return invalid("`url` is not an https address (http on loopback) of visible ASCII without a user")
	}
	return nil
}

// isAllowedURL reports whether a server may ask users to open this URL. The URL must have the scheme https or, for a
// loopback host, http. Only visible ASCII is accepted, because parsers disagree about other characters (RFC 3986). A
// user name in the URL is not accepted, because users could mistake it for the host.
func isAllowedURL(at string) bool {
	if len(at) > maxURL || strings.ContainsFunc(at, func(r rune) bool { return r <= ' ' || r > '~' || r == '\\' }) {
		return false
	}
	u, err := url.Parse(at)
	if err != nil || u.Opaque != "" || u.User != nil || u.Hostname() == "" {
		return false
	}
	return u.Scheme == "https" || u.Scheme == "http" && isLoopback(u.Hostname())
}

func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback()
}

// checkFormLines checks a form that a client receives at the URL for all servers. The gateway adds the server's name to
// each string of the form that users see, so that they know which server asks. It cannot add the name to keys and
// values, because clients return these to the server unchanged. Keys and values must therefore not contain line breaks,
// after which a text could look as if another server had sent it.
func checkFormLines(schema jsontext.Value) *Error {
	dec := jsontext.NewDecoder(bytes.NewBuffer(schema), jsontext.AllowDuplicateNames(true))
	key := ""
	for {
		token, err := dec.ReadToken()
		if err != nil {
			return nil //nolint:nilerr // the end of the schema: package jsonrpc has already accepted the message
		}
		if token.Kind() != '"' {
			continue
		}
		kind, n := dec.StackIndex(dec.StackDepth())
		isKey := kind == '{' && n%2 == 1
		if isKey {
			key = token.String()
		}
		isPlain := isKey || kind == '[' || key == "const" || key == "default"
		if isPlain && strings.ContainsAny(token.String(), "\n\r\v\f\u0085\u2028\u2029") {
			return invalid("a key or a value of the form has more than one line")
		}
	}
}
