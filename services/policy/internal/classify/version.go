package classify

// Version is the version of the classifier's results. Increase it whenever the result for any definition changes.
// Stored results with another version are then computed again. A test checks that Version was increased if the results
// for the labelled tools have changed.
const Version = 9
