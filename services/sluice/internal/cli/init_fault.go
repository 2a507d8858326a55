package cli

import (
	"path/filepath"
	"regexp"
	"strings"
)

var (
	// brokenInstall matches the errors that npm and Node.js print if a package is only partly installed.
	brokenInstall = regexp.MustCompile(`ENOTEMPTY|MODULE_NOT_FOUND|Cannot find (module|package)`)
	// npxDirectory matches the directory of a package in the npx cache.
	npxDirectory = regexp.MustCompile(`(/|[A-Za-z]:\\)[^'":\r\n]*[/\\]_npx[/\\][0-9a-f]{8,}`)
	// stackFrame matches lines after an error message in the output of Node.js, Python and npm.
	stackFrame = regexp.MustCompile(`^(at |File "|node:|Node\.js v|npm (error|ERR!) (A complete log|code |errno |syscall |path |signal )|throw |[\^~{}()\[\],;]+$)|^[a-z]\w*: ('|\[|undefined|-?\d+,?$)`)
	// errorMessage matches a line that contains an error message.
	errorMessage = regexp.MustCompile(`(?i)error|exception|panic|fatal|cannot|can't|not found|denied|missing|required|invalid|failed`)
)

// damagedCache returns the directory of an incomplete package in the npx cache, from a server's output. It returns ""
// if the output contains no such directory.
func damagedCache(output string) string {
	if !brokenInstall.MatchString(output) {
		return ""
	}
	if dir := npxDirectory.FindString(output); dir != "" {
		return filepath.Clean(dir)
	}
	return ""
}

// lastMessage returns the last line with an error message in a program's output. If there is none, it returns the last
// line that is not part of a stack trace, or else the last line.
func lastMessage(output string) string {
	var last, plain, message string
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		last = line
		if stackFrame.MatchString(line) {
			continue
		}
		plain = line
		if errorMessage.MatchString(line) {
			message = line
		}
	}
	for _, line := range []string{message, plain} {
		if line != "" {
			return line
		}
	}
	return last
}

// trialFault describes, on one line, why the tools of a server can't be listed.
func trialFault(err error) string {
	text := err.Error()
	if dir := damagedCache(text); dir != "" {
		return "its npx cache is damaged: remove " + dir
	}
	head, output, found := strings.Cut(text, stderrBegins)
	if !found {
		return text
	}
	return head + "; its standard error says: " + lastMessage(output) + " (start it yourself to see the rest)"
}
