package aggregate

import (
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
)

// isPlainKey reports whether the value of a key in a form's schema must stay unchanged, because programs interpret the
// value or clients send it back to the server. The values of all other keys are shown to users.
func isPlainKey(key string) bool {
	switch key {
	case "type", "format", "const", "enum", "default", "pattern", "required", "$schema", "$id", "$ref":
		return true
	default:
		return false
	}
}

// form adds the server's name to each string that users see in a form or in a part of a form. Clients show a field's
// key if the field has no title, so form adds a title that consists of the server's name and the key. The caller passes
// the field's key, or "" if the object is not a field.
func (w *nameWalker) form(field string) error {
	titled, members := field == "", 0
	err := eachMember(w.dec, func(key string) error {
		members++
		switch kind := w.dec.PeekKind(); {
		case isPlainKey(key) && kind != '{': // an object here defines a field and may contain strings that users see
			return w.dec.SkipValue()
		case key == "properties" && kind == '{':
			return eachMember(w.dec, w.field)
		case key == "title" && kind == '"':
			titled = true
		case key == "title" && field != "":
			titled = true
			return w.replaceTitle(field)
		}
		return w.formValue()
	})
	if err != nil || titled {
		return err
	}
	title := append([]byte(`"title":`), quoteJSON(questionText(w.server, field))...)
	if members > 0 {
		title = append([]byte{','}, title...)
	}
	end := int(w.dec.InputOffset()) - 1
	return w.add(jsonrpc.Edit{Span: jsonrpc.Span{Start: end, End: end}, With: title})
}

func (w *nameWalker) field(key string) error {
	if w.dec.PeekKind() == '{' {
		return w.form(key)
	}
	return w.formValue()
}

// replaceTitle replaces a title with the field's key and the server's name. The caller must have checked that the title
// is not a string.
func (w *nameWalker) replaceTitle(field string) error {
	raw, err := w.dec.ReadValue()
	if err != nil {
		return err
	}
	end := int(w.dec.InputOffset())
	return w.add(ReplaceText(jsonrpc.Span{Start: end - len(raw), End: end}, questionText(w.server, field)))
}

// formValue adds the server's name to the strings in a value that is not the definition of a field.
func (w *nameWalker) formValue() error {
	switch w.dec.PeekKind() { //nolint:exhaustive // all other kinds contain no text
	case '{':
		return w.form("")
	case '[':
		if _, err := w.dec.ReadToken(); err != nil {
			return err
		}
		for w.dec.PeekKind() != ']' {
			if err := w.formValue(); err != nil {
				return err
			}
		}
		_, err := w.dec.ReadToken()
		return err
	case '"':
		return w.text([]namePlace{{combine: questionText}})
	default:
		return w.dec.SkipValue()
	}
}
