/* SHA-256 and HMAC-SHA-256 return the values that the standards print. For texts of 0 to 199 bytes the hash returns
   what Python's hashlib returns. */
#include "backend/base/sha256.h"
#include "tests/support/unit.h"

static void assert_hex(const unsigned char *bytes, const char *expected)
{
    char text[2 * SHA256_BYTES + 1];
    for (int i = 0; i < SHA256_BYTES; i++) snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    assert_string_equal(text, expected);
}
static void hash_in_pieces(const void *text, size_t bytes, size_t piece, unsigned char out[SHA256_BYTES])
{
    struct sha256 hash;
    sha256_init(&hash);
    for (size_t at = 0; at < bytes; at += piece)
        sha256_add(&hash, (const char *)text + at, bytes - at < piece ? bytes - at : piece);
    sha256_finish(&hash, out);
}
/* The texts and hashes are the examples of FIPS 180-4. */
static void test_sha256_returns_the_hashes_of_the_standard(void **state)
{
    static const char *texts[] = { "", "abc", "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq" };
    static const char *hashes[] = { "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1" };
    unsigned char out[SHA256_BYTES];
    (void)state;
    for (int i = 0; i < 3; i++) {
        hash_in_pieces(texts[i], strlen(texts[i]), 64, out);
        assert_hex(out, hashes[i]);
    }
}
/* The expected value is the hash of the hashes of 0 to 199 letters a, as hashlib computes it. */
static void test_sha256_of_pieces_equals_that_of_the_whole_text(void **state)
{
    char text[200];
    unsigned char whole[SHA256_BYTES], pieces[SHA256_BYTES], all[SHA256_BYTES];
    struct sha256 hash;
    (void)state;
    memset(text, 'a', sizeof text);
    sha256_init(&hash);
    for (size_t bytes = 0; bytes < sizeof text; bytes++) {
        hash_in_pieces(text, bytes, sizeof text, whole);
        hash_in_pieces(text, bytes, 7, pieces);
        assert_memory_equal(whole, pieces, sizeof whole);
        sha256_add(&hash, whole, sizeof whole);
    }
    sha256_finish(&hash, all);
    assert_hex(all, "752c007f38611cfbf5fa42cb1cea3d8e086491c844d0cc4defd632cb81423506");
}
/* These are cases 1, 2, 6 and 7 of RFC 4231: keys of 20 and of 4 bytes, and two keys that are longer than a block. */
static void test_hmac_returns_the_codes_of_the_standard(void **state)
{
    unsigned char key[131], out[SHA256_BYTES];
    static const char first[] = "Test Using Larger Than Block-Size Key - Hash Key First";
    static const char larger[] = "This is a test using a larger than block-size key and a larger than block-size data. "
                                 "The key needs to be hashed before being used by the HMAC algorithm.";
    (void)state;
    memset(key, 0x0b, 20);
    hmac_sha256(key, 20, "Hi There", 8, out);
    assert_hex(out, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    hmac_sha256("Jefe", 4, "what do ya want for nothing?", 28, out);
    assert_hex(out, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof key);
    hmac_sha256(key, sizeof key, first, strlen(first), out);
    assert_hex(out, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    hmac_sha256(key, sizeof key, larger, strlen(larger), out);
    assert_hex(out, "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}
static void test_secret_comparison_finds_every_changed_bit(void **state)
{
    unsigned char a[SHA256_BYTES] = { 0 }, b[SHA256_BYTES] = { 0 };
    (void)state;
    assert_true(secret_bytes_equal(a, b, sizeof a));
    for (int bit = 0; bit < 8 * SHA256_BYTES; bit++) {
        b[bit / 8] ^= (unsigned char)(1u << bit % 8);
        assert_false(secret_bytes_equal(a, b, sizeof a));
        b[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
}
unit_function test_sha256;
int test_sha256(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sha256_returns_the_hashes_of_the_standard),
        cmocka_unit_test(test_sha256_of_pieces_equals_that_of_the_whole_text),
        cmocka_unit_test(test_hmac_returns_the_codes_of_the_standard),
        cmocka_unit_test(test_secret_comparison_finds_every_changed_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
