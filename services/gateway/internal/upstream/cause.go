package upstream

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
)

// A CauseError says why a server cannot be used.
type CauseError struct {
	// Text may be shown to every caller. It describes the problem and, if possible, says what to do. It is a clause
	// without a full stop. It contains nothing that the server has sent, except possibly an address or the names of OAuth
	// scopes. The address is escaped, has a limited length, and contains no query. The names have a limited length and
	// consist of the characters that such names usually have.
	Text string
	// Detail contains more information. Only operators of the home tenant may see it. For example, it is the last line
	// that a process has written to standard error. It is redacted and escaped, and its length is limited. It may be
	// empty.
	Detail string
	// Lasts is true if the same request will fail until an operator makes a change.
	Lasts bool
	// SignIn is true if a person has to sign in at the server, or has to sign in again to grant other scopes. SignIn is
	// also true if the person for whom the server is called is not known. The server itself has no fault.
	SignIn bool
	// OfPerson is true if the error depends on the account or the sessions of one person. Requests of other callers may
	// then succeed.
	OfPerson bool
	// RetryAfter is the time after which the same request may succeed, or 0 if that is not known.
	RetryAfter time.Duration
	// Err is the error that is logged at debug level. It is never nil.
	Err error
}

// Error implements error.
func (c *CauseError) Error() string { return c.Err.Error() }

// Unwrap returns Err.
func (c *CauseError) Unwrap() error { return c.Err }

// IsSignIn reports whether err means that a person has to sign in at the server, as [CauseError.SignIn] describes.
func IsSignIn(err error) bool {
	cause := CauseOf(err)
	return cause != nil && cause.SignIn
}

// CauseOf returns the [CauseError] that err wraps, or nil if there is none.
func CauseOf(err error) *CauseError {
	cause, _ := errors.AsType[*CauseError](err)
	return cause
}

// isOfPerson reports whether err depends on the account or the sessions of one person.
func isOfPerson(err error) bool {
	cause := CauseOf(err)
	return cause != nil && (cause.OfPerson || cause.SignIn)
}

// WithClass returns an error of the given class, such as [ErrNeverSent]. The error has the message of err and wraps the
// [CauseError], the [LimitError], [ErrSessionLost] and [ErrSignedOut], if err wraps them. It does not have the class of
// err, because err is about another message.
func WithClass(class error, what string, err error) error {
	out := classedError{text: fmt.Sprintf("%v: %s: %v", class, what, err), under: []error{class}}
	if limit, ok := errors.AsType[*LimitError](err); ok {
		out.under = append(out.under, limit)
	}
	if cause := CauseOf(err); cause != nil {
		out.under = append(out.under, cause.withoutClass())
	}
	for _, lost := range []error{ErrSessionLost, ErrSignedOut} {
		if errors.Is(err, lost) {
			out.under = append(out.under, lost)
		}
	}
	return out
}

// withoutClass returns a copy of the cause that has no class, such as [ErrNeverSent].
func (c *CauseError) withoutClass() *CauseError {
	copied := *c
	copied.Err = errors.New(c.Error())
	return &copied
}

type classedError struct {
	text  string
	under []error
}

func (e classedError) Error() string   { return e.text }
func (e classedError) Unwrap() []error { return e.under }

// Network returns a short explanation for operators of why a server was not reached. It returns "" if the reason is not
// known.
func Network(err error) string {
	if errors.Is(err, fs.ErrNotExist) {
		return "there is no such file"
	}
	if number, ok := errors.AsType[syscall.Errno](err); ok {
		return number.Error()
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return "its host name was not resolved"
	}
	return ""
}

// ForLog returns the text with which an error is logged at debug level. The text says why a request has no usable
// answer. It contains details that only operators may see, the address that was not reached, and the fault in an
// answer. Unlike err.Error(), it quotes no header, no argument and no part of an answer.
func ForLog(err error) string {
	reason := reasonOf(Answer{}, err)
	parts := []string{reason.text}
	if reason.detail != "" {
		parts = append(parts, reason.detail)
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		parts = append(parts, op.Error())
	}
	if form, ok := errors.AsType[*jsonrpc.Error](err); ok {
		parts = append(parts, form.Error())
	}
	return strings.Join(parts, ": ")
}

// Escaped escapes each character of text that could forge or garble a log line. The result has at most limit bytes, or
// slightly more if the last character is escaped. If text is longer, the result is truncated and "..." is appended.
func Escaped(text string, limit int) string {
	var b strings.Builder
	for i, size := 0, 0; i < len(text); i += size {
		if b.Len() >= limit {
			b.WriteString("...")
			break
		}
		var r rune
		r, size = utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			b.WriteString(`\x` + strconv.FormatUint(uint64(text[i]), 16))
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		}
	}
	return b.String()
}
