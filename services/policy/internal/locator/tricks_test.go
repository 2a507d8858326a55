package locator_test

import (
	"bytes"
	"fmt"
	"maps"
	"net"
	"net/mail"
	"net/netip"
	"net/url"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/go-json-experiment/json"
	"golang.org/x/text/unicode/norm"

	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/policy/internal/locator"
)

// texts contains the strings that a program parses in one run.
type texts struct {
	Paths []string `json:"paths"`
	URLs  []string `json:"urls"`
	IPs   []string `json:"ips"`
	Mails []string `json:"mails"`
}

type (
	// readPath is how a program in Go, Node or Python parses a path: the cleaned path, its last segment and its
	// extension.
	readPath struct {
		Clean string `json:"clean"`
		Base  string `json:"base"`
		Ext   string `json:"ext"`
	}
	// readURL contains the parts of a URL as a program in Go, Node or Python interprets it.
	readURL struct {
		Scheme string `json:"scheme"`
		User   string `json:"user"`
		Host   string `json:"host"`
		Port   string `json:"port"`
		Path   string `json:"path"`
	}
)

// readings contains one map for each string. The map contains the result of each parser by the parser's name. A program
// can have several parsers. If a parser refuses the string, the map has no entry for the parser.
type readings struct {
	Paths []map[string]readPath `json:"paths"`
	URLs  []map[string]readURL  `json:"urls"`
	IPs   []map[string]string   `json:"ips"`
	Mails []map[string]string   `json:"mails"`
}

// readAll returns how programs in Go, in Node, and in Python if it is installed, interpret the strings. Each program
// runs once for all strings.
func readAll(t *testing.T, given texts) readings {
	t.Helper()
	out := readByGo(given)
	out.merge(readBy(t, given, npmtest.Node(t), "testdata/readers.cjs"))
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Log("python3 is not installed, so its readers are not compared")
		return out
	}
	out.merge(readBy(t, given, python, "testdata/readers.py"))
	return out
}

func readBy(t *testing.T, given texts, program, script string) readings {
	t.Helper()
	in, err := json.Marshal(given)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, script)
	cmd.Stdin = bytes.NewReader(in)
	printed, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	var out readings
	if err := json.Unmarshal(printed, &out); err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	if len(out.Paths) != len(given.Paths) || len(out.URLs) != len(given.URLs) || len(out.IPs) != len(given.IPs) || len(out.Mails) != len(given.Mails) {
		t.Fatalf("%s did not read all strings", script)
	}
	return out
}

// merge adds the results of other programs for the same strings.
func (r *readings) merge(others readings) {
	mergeAll(r.Paths, others.Paths)
	mergeAll(r.URLs, others.URLs)
	mergeAll(r.IPs, others.IPs)
	mergeAll(r.Mails, others.Mails)
}

func mergeAll[T any](into, from []map[string]T) {
	for i := range into {
		maps.Copy(into[i], from[i])
	}
}

func readByGo(given texts) readings {
	var out readings
	for _, text := range given.Paths {
		clean := path.Clean(text)
		out.Paths = append(out.Paths, map[string]readPath{"Go": {clean, path.Base(clean), path.Ext(clean)}, "Go filepath": {filepath.Clean(text), filepath.Base(clean), filepath.Ext(clean)}})
	}
	for _, text := range given.URLs {
		read := make(map[string]readURL)
		if u, err := url.Parse(text); err == nil && u.Host != "" {
			read["Go"] = readURL{u.Scheme, u.User.String(), strings.ToLower(bracketed(u.Hostname())), u.Port(), u.EscapedPath()}
		}
		out.URLs = append(out.URLs, read)
	}
	for _, text := range given.IPs {
		read := make(map[string]string)
		if address, err := netip.ParseAddr(text); err == nil {
			read["Go netip"] = address.WithZone("").String()
		}
		if address := net.ParseIP(text); address != nil {
			read["Go net"] = address.String()
		}
		out.IPs = append(out.IPs, read)
	}
	for _, text := range given.Mails {
		read := make(map[string]string)
		if address, err := mail.ParseAddress(text); err == nil {
			read["Go"] = address.Address[strings.LastIndexByte(address.Address, '@')+1:]
		}
		out.Mails = append(out.Mails, read)
	}
	return out
}

// isBelow reports whether a cleaned path is equal to root or below it.
func isBelow(clean, root string) bool {
	clean, root = strings.TrimSuffix(clean, "/"), strings.TrimSuffix(root, "/")
	if root == "." {
		return !strings.HasPrefix(clean, "/") && clean != ".." && !strings.HasPrefix(clean, "../")
	}
	return clean == root || strings.HasPrefix(clean, root+"/")
}

// checkReadPath compares the results of Within, Base and Ext for a path with the results of programs in Go, Node and
// Python.
func checkReadPath(t *testing.T, text, root string, read map[string]readPath) {
	t.Helper()
	in, err := within(text, root)
	if err != nil {
		return
	}
	p, _ := locator.ParsePath(text)
	base, baseErr := p.Base()
	ext, extErr := p.Ext()
	for name, r := range read {
		fold := func(text string) string { return text }
		if name == "NFKC" {
			fold = norm.NFKC.String
		}
		if got := isBelow(r.Clean, fold(root)); got != in {
			t.Errorf("%q within %q is %v; %s cleans it to %q", text, root, in, name, r.Clean)
		}
		if name == "shift_jis" || name == "cp864" { // these readers also change letters
			continue
		}
		if baseErr == nil && fold(base) != r.Base {
			t.Errorf("the base of %q is %q; %s: %q", text, base, name, r.Base)
		}
		if extErr == nil && fold(ext) != r.Ext {
			t.Errorf("the extension of %q is %q; %s: %q", text, ext, name, r.Ext)
		}
	}
}

// checkReadURL compares the parts that ParseURL returns with the results of programs in Go, Node and Python. The path
// must also stay the same when a program has decoded and cleaned it.
func checkReadURL(t *testing.T, text string, read map[string]readURL) {
	t.Helper()
	u, err := locator.ParseURL(text)
	if err != nil {
		return
	}
	for name, r := range read {
		if r.Port == "" && portText(u) != "" || r.Port != "" && r.Port != strconv.Itoa(u.Port) {
			t.Errorf("the port of %q is %d; %s: %q", text, u.Port, name, r.Port)
		}
		if r.Scheme != u.Scheme || r.User != "" || strings.Trim(r.Host, "[].") != u.Host && inASCII(r.Host) {
			t.Errorf("%q has the host %q; %s: scheme %q, user %q, host %q", text, u.Host, name, r.Scheme, r.User, r.Host)
		}
		decoded, err := url.PathUnescape(r.Path)
		own, _ := url.PathUnescape(u.Path)
		if clean := path.Clean("/" + decoded); err != nil || clean != path.Clean(own) || clean != strings.TrimSuffix(own, "/") && own != "/" {
			t.Errorf("the path of %q is %q; %s: %q", text, u.Path, name, r.Path)
		}
	}
}

func inASCII(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r > unicode.MaxASCII })
}

// checkReadIP compares the address that ParseIP returns with the address that programs in Go, Node and Python return.
func checkReadIP(t *testing.T, text string, read map[string]string) {
	t.Helper()
	address, err := locator.ParseIP(text)
	if err != nil {
		return
	}
	for name, r := range read {
		other, err := netip.ParseAddr(strings.Trim(r, "[]"))
		if err != nil || other.Unmap() != address {
			t.Errorf("%q is %v; %s: %q", text, address, name, r)
		}
	}
}

// checkReadMail compares the domain that EmailDomain returns with the domain that programs in Go, Node and Python
// return.
func checkReadMail(t *testing.T, text string, read map[string]string) {
	t.Helper()
	domain, err := locator.EmailDomain(text)
	if err != nil {
		return
	}
	for name, r := range read {
		if !strings.EqualFold(r, domain) {
			t.Errorf("the domain of %q is %q; %s: %q", text, domain, name, r)
		}
	}
}

// TestTricks_NoReaderResolvesAStringOtherwise checks the results for strings that could mislead a rule. It also parses
// the strings with programs in Go, Node and Python. If a function returns a value for a string, all programs that
// accept the string must return the same value. Case P14.
func TestTricks_NoReaderResolvesAStringOtherwise(t *testing.T) {
	t.Parallel()
	var given texts
	for _, c := range pathTricks {
		given.Paths = append(given.Paths, strings.ToValidUTF8(c.text, "?"))
	}
	for _, c := range urlTricks {
		given.URLs = append(given.URLs, strings.ToValidUTF8(c.text, "?"))
	}
	for _, c := range ipTricks {
		given.IPs = append(given.IPs, strings.ToValidUTF8(c.text, "?"))
	}
	for _, c := range mailTricks {
		given.Mails = append(given.Mails, strings.ToValidUTF8(c.text, "?"))
	}
	read := readAll(t, given)
	for i, c := range pathTricks {
		in, err := within(c.text, c.root)
		wantResult(t, c.text, c.want, strconv.FormatBool(in), err)
		checkReadPath(t, c.text, c.root, read.Paths[i])
	}
	for i, c := range urlTricks {
		u, err := locator.ParseURL(c.text)
		wantResult(t, c.text, c.want, fmt.Sprintf("%s %s %d %s", u.Scheme, u.Host, u.Port, u.Path), err)
		checkReadURL(t, c.text, read.URLs[i])
	}
	for i, c := range ipTricks {
		address, err := locator.ParseIP(c.text)
		wantResult(t, c.text, c.want, address.String(), err)
		checkReadIP(t, c.text, read.IPs[i])
	}
	for i, c := range mailTricks {
		domain, err := locator.EmailDomain(c.text)
		wantResult(t, c.text, c.want, domain, err)
		checkReadMail(t, c.text, read.Mails[i])
	}
}

// wantResult checks the result for a string. If the parameter want is empty, an error is expected.
func wantResult(t *testing.T, text, want, got string, err error) {
	t.Helper()
	switch {
	case want == "" && err == nil:
		t.Errorf("%q: %s; want an error", text, got)
	case want != "" && err != nil:
		t.Errorf("%q: %v; want %s", text, err, want)
	case want != "" && got != want:
		t.Errorf("%q: %s; want %s", text, got, want)
	}
}

// TestTricks_NoReaderResolvesALetterOtherwise checks non-ASCII characters in paths and hosts. It checks every printable
// character, with one exception: of the letters that have no other case and no other form, it checks only one in 64.
// Case P14.
func TestTricks_NoReaderResolvesALetterOtherwise(t *testing.T) {
	t.Parallel()
	var given texts
	for r := rune(0x80); r < 0x20000; r++ {
		special := !unicode.IsLetter(r) || unicode.SimpleFold(r) != r || !norm.NFKC.IsNormalString(string(r))
		if !unicode.IsPrint(r) || !special && r%64 != 0 {
			continue
		}
		add := func(to *[]string, form string, err func(string) error) {
			if text := strings.ReplaceAll(form, "*", string(r)); err(text) == nil {
				*to = append(*to, text)
			}
		}
		parsePath := func(text string) error { _, err := locator.ParsePath(text); return err }
		parseURL := func(text string) error { _, err := locator.ParseURL(text); return err }
		add(&given.Paths, "/srv/a*..*..*..*b.txt", parsePath)
		add(&given.Paths, "*/.*x", parsePath)
		add(&given.URLs, "https://*.example/", parseURL)
	}
	if len(given.Paths) < 5_000 || len(given.URLs) < 1_000 {
		t.Fatalf("only %d paths and %d URLs are accepted, so the test shows little", len(given.Paths), len(given.URLs))
	}
	read := readAll(t, given)
	for i, text := range given.Paths {
		root := "."
		if strings.HasPrefix(text, "/") {
			root = "/srv"
		}
		checkReadPath(t, text, root, read.Paths[i])
	}
	for i, text := range given.URLs {
		checkReadURL(t, text, read.URLs[i])
	}
}
