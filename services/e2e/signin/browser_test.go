package signin_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"

	"golang.org/x/net/html"
)

// The person who signs in. One of the providers knows this name and this password, the other accepts all names.
const personName, personPassword = "test-user2", "verysecure"

// maxPages is the maximum number of pages of a sign-in.
const maxPages = 10

// nameKey is the key of the name in a context. See [asPerson].
type nameKey struct{}

// asPerson returns a context in which the browser belongs to the person with this name instead of personName.
func asPerson(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, nameKey{}, name)
}

// nameIn returns the name of the person who uses the browser.
func nameIn(ctx context.Context) string {
	if name, ok := ctx.Value(nameKey{}).(string); ok {
		return name
	}
	return personName
}

// browse acts as a person with a browser. It opens a URL, enters the name and the password in each form, and consents.
// It returns the parameters with which the provider redirects to the callback. If the callback belongs to a running
// program, the program receives them, too. If the callback is empty, the sign-in ends with a page without a form.
func browse(ctx context.Context, at, callback string) (url.Values, error) {
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, err
	}
	var redirected url.Values
	client := &http.Client{Jar: jar, CheckRedirect: func(req *http.Request, _ []*http.Request) error {
		if callback != "" && strings.HasPrefix(req.URL.String(), callback) {
			redirected = req.URL.Query()
			if callback == unusedCallback {
				return http.ErrUseLastResponse // nothing listens there
			}
		}
		return nil
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, http.NoBody)
	for range maxPages {
		if err != nil {
			return nil, err
		}
		resp, err := client.Do(req)
		if err != nil {
			return nil, err
		}
		page, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		switch {
		case err != nil:
			return nil, err
		case redirected != nil && redirected.Get("code") == "":
			return nil, fmt.Errorf("the provider has refused the sign-in: %v", redirected)
		case redirected != nil:
			return redirected, nil
		case resp.StatusCode != http.StatusOK:
			return nil, fmt.Errorf("%s: %s: %s", resp.Request.URL, resp.Status, page)
		}
		action, fields := formOf(string(page), nameIn(ctx))
		if fields == nil && callback == "" {
			return nil, nil
		}
		if fields == nil {
			return nil, fmt.Errorf("%s has no form: %s", resp.Request.URL, page)
		}
		to, err := resp.Request.URL.Parse(action)
		if err != nil {
			return nil, err
		}
		req, err = http.NewRequestWithContext(ctx, http.MethodPost, to.String(), strings.NewReader(fields.Encode()))
		if err != nil {
			return nil, err
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	return nil, errors.New("the sign-in has too many pages")
}

// formOf returns the action of the first form of a page, and its fields with the values that the person with the given
// name enters. The fields are nil if the page has no form.
func formOf(page, name string) (action string, fields url.Values) {
	tokens := html.NewTokenizer(strings.NewReader(page))
	for {
		switch tokens.Next() {
		case html.ErrorToken:
			return action, fields
		case html.EndTagToken:
			if name, _ := tokens.TagName(); string(name) == "form" && fields != nil {
				return action, fields
			}
		case html.StartTagToken, html.SelfClosingTagToken:
			token := tokens.Token()
			of := make(map[string]string)
			for _, a := range token.Attr {
				of[a.Key] = a.Val
			}
			switch {
			case token.Data == "form":
				action, fields = of["action"], make(url.Values)
			case token.Data == "input" && fields != nil && of["name"] != "":
				fields.Set(of["name"], entered(of, name))
			}
		}
	}
}

// entered returns what the person with the given name enters in an input field.
func entered(field map[string]string, name string) string {
	switch field["type"] {
	case "hidden":
		return field["value"]
	case "password":
		return personPassword
	default:
		return name
	}
}
